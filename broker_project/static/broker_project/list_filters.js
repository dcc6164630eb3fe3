/* Filters of lists whose entries are found by typing: choosing one filters at once, as a click on any other does. */

django.jQuery(document).on("change", "select.unfold-filter-autocomplete", ({target}) => {
    const address = new URL(location);
    address.searchParams.delete(target.name);
    address.searchParams.delete("p"); // the page
    if (target.value) {
        address.searchParams.set(target.name, target.value);
    }
    location.assign(address);
});

/* Applying filters begins with the first page, and leaves out of the address what is empty. */

document.addEventListener("submit", ({target}) => {
    if (target.id === "filter-form") {
        for (const field of target.querySelectorAll("input")) {
            field.disabled ||= field.name === "p" || !field.value;
        }
    }
});
