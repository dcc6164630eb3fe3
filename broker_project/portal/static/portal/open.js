/* People need not press the button; programs that preview links do not run this. */
document.getElementById("open").requestSubmit();
