/* A button beside each text that people take elsewhere; it copies the text, which stays selected. */

"use strict";

const COPIED_MILLISECONDS = 2000;
const MAX_READ_OUT = 80;

const announcement = document.createElement("p");
announcement.className = "copied";
announcement.setAttribute("role", "status");

function addButtons() {
    for (const text of document.querySelectorAll("[data-copy]:not([data-has-button])")) {
        const button = document.createElement("button");
        const words = text.textContent.length > MAX_READ_OUT ? "" : ` ${text.textContent}`;
        button.type = "button";
        button.className = text.matches("span") ? "copy icon" : "copy";
        button.textContent = text.matches("span") ? "" : "Copy";
        button.title = "Copy";
        button.setAttribute("aria-label", `Copy ${text.dataset.copy}${words}`);
        button.addEventListener("click", () => copy(text, button));
        text.dataset.hasButton = "";
        if (text.matches("pre")) {
            text.before(button);
        } else {
            (text.closest("a") ?? text).after("\u2060", button); // which allows no line end between them
        }
    }
}

function copy(text, button) {
    if (text.matches("input")) {
        text.select();
    } else {
        getSelection().selectAllChildren(text);
    }
    document.execCommand("copy"); // the clipboard's newer interface is missing where there is no TLS
    announcement.textContent = "Copied";
    button.classList.add("done");
    setTimeout(() => {
        announcement.textContent = "";
        button.classList.remove("done");
    }, COPIED_MILLISECONDS);
}

addEventListener("DOMContentLoaded", () => {
    document.body.append(announcement);
    addButtons();
    new MutationObserver(addButtons).observe(document.body, {childList: true, subtree: true});
});
