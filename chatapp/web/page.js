"use strict";

// The terminal's script opens the connection. What the server says about its end is read along here.
{
  let sentence = null;

  const read = (data) => {
    if (typeof data !== "string") return;
    const [verb, value] = JSON.parse(data);
    if (verb === "said") sentence = value;
    if (verb === "told") {
      const told = document.querySelector("#told");
      told.textContent = value;
      told.hidden = false;
    }
  };

  const close = () => {
    document.querySelector("#sentence").textContent = sentence ?? document.body.dataset.broken;
    document.body.classList.add("-closed");
    document.querySelector("#again").focus();
  };

  window.WebSocket = class extends WebSocket {
    constructor(...given) {
      super(...given);
      this.addEventListener("open", () => document.querySelector(".xterm-helper-textarea")?.focus());
      this.addEventListener("message", (event) => read(event.data));
      this.addEventListener("close", close);
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelector("#again").addEventListener("click", () => window.location.reload());
    document.querySelector("#told").addEventListener("click", (event) => {
      event.target.hidden = true;
    });
  });
}
