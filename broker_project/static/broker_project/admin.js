/* What the admin's theme lacks: names that screen readers say, where the skip link leads, and forms that are sent once. */

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

const SENT_MILLISECONDS = 2000;

/* Of a double click on a button, only the first click sends its form. */
addEventListener("submit", event => {
    const form = event.target;
    if (form.method !== "post") return;
    if ("sent" in form.dataset) {
        event.preventDefault();
        return;
    }
    form.dataset.sent = "";
    setTimeout(() => delete form.dataset.sent, SENT_MILLISECONDS);
});
