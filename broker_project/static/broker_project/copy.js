/* A button beside each text that people take elsewhere; it copies the text, which stays selected. */

"use strict";

const COPIED_MILLISECONDS = 2000;

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
