/* A page of something that is done step by step asks for the next step by itself. */

setTimeout(() => document.getElementById("go-on").requestSubmit(), 300);
