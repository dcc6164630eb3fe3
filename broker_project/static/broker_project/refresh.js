/* A page that refreshes itself says so when it cannot: what it shows is then of an earlier time. */

const notice = document.getElementById("not-refreshed");
let refreshedAt = new Date();

document.getElementById("refresh").addEventListener("htmx:afterRequest", ({detail}) => {
    notice.hidden = Boolean(detail.successful) && detail.xhr.responseText.includes('id="live"');
    if (notice.hidden) {
        refreshedAt = new Date();
    }
    notice.textContent = `Not refreshed since ${refreshedAt.toISOString().slice(0, 19).replace("T", " ")} UTC.`;
});
