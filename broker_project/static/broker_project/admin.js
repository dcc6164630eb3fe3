/* What the admin's theme lacks: names that screen readers say, where the skip link leads, the focus, and forms that are
   sent once. */

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
    // While the theme hides the page at first, browsers may find that nothing can have the focus, and look no more.
    if (document.activeElement === document.body) document.querySelector("[autofocus]")?.focus();
}));

const SENT_MILLISECONDS = 1000;
const sent = new WeakMap(); // forms, and the button that has just sent each

/* Of a double click on a button, only the first click sends its form; heard before what sends it without a new page. */
addEventListener("submit", event => {
    const form = event.target;
    if (form.getAttribute("method") !== "post") return; // a field of that name would hide the property
    if (sent.has(form) && sent.get(form) === event.submitter) {
        event.preventDefault();
        event.stopImmediatePropagation();
        return;
    }
    sent.set(form, event.submitter);
    setTimeout(() => sent.delete(form), SENT_MILLISECONDS);
}, true);
