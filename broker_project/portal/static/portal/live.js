/* The numbers refresh themselves; when they cannot, they are faded, since they are of an earlier time. */
setInterval(async () => {
    if (document.hidden) return;
    const shown = document.getElementById("live");
    try {
        const answer = await fetch(location.pathname, {signal: AbortSignal.timeout(9000)});
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
        shown.replaceWith(fresh ?? shown);
        shown.classList.toggle("stale", !fresh);
    } catch {
        shown.classList.add("stale");
    }
}, 10000);
