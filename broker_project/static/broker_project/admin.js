/* What the admin's theme lacks: names that screen readers say, and where the skip link leads. */

"use strict";

/* What other scripts have built when the page was loaded. */
addEventListener("load", () => setTimeout(() => {
    for (const select of document.querySelectorAll("select.select2-hidden-accessible")) {
        const name = select.labels[0]?.textContent.trim() ?? select.name;
        for (const field of select.nextElementSibling.querySelectorAll("[role=combobox], [role=textbox], [role=searchbox]")) {
            field.setAttribute("aria-label", name);
        }
    }
    for (const picture of document.querySelectorAll(".help-tooltip[aria-label]")) {
        picture.setAttribute("role", "img");
    }
    document.querySelector("#result_list .data-row")?.setAttribute("id", "first-row"); // where the skip link leads
}));
