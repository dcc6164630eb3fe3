/* People need not press the button; programs that preview links do not run this. A second press would find it used. */
const form = document.getElementById("open");
form.addEventListener("submit", () => { form.querySelector("button").disabled = true; });
if ("send" in form.dataset) form.requestSubmit();
