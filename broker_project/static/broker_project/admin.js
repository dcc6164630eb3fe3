/* What the admin's theme lacks: buttons that copy, and names that screen readers say. */

"use strict";

const COPIED_MILLISECONDS = 2000;

/* A button beside each text that people take elsewhere; it copies the text, which stays selected. */
htmx.onLoad((part) => {
    for (const text of part.querySelectorAll("[data-copy]")) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "copy";
        button.textContent = "Copy";
        button.setAttribute("aria-label", `Copy ${text.dataset.copy}`);
        button.addEventListener("click", () => {
            getSelection().selectAllChildren(text);
            document.execCommand("copy"); // the clipboard's newer interface is missing where there is no TLS
            button.textContent = "Copied";
            setTimeout(() => { button.textContent = "Copy"; }, COPIED_MILLISECONDS);
        });
        if (text.matches("pre")) {
            text.before(button);
        } else {
            text.after(button);
        }
    }
});

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
