// The conversation on the page: messages, reasoning and errors.

import { make, say } from "./dom.js";

export class Messages {
  constructor(parent) {
    this.parent = parent;
  }

  clear() {
    this.parent.replaceChildren();
  }

  user(text) {
    this.add("user", "You").text.textContent = text;
  }

  /** Add an answer that is still streaming. Returns functions that update and end it. */
  assistant(model) {
    const { node, text } = this.add("assistant", model);
    const thought = make("div", { class: "text" });
    const reasoning = make("details", { class: "reasoning", open: "" }, make("summary", {}, "Reasoning"), thought);
    node.classList.add("streaming");
    return {
      show: ({ content, reasoning: thinking }) => {
        if (thinking && !reasoning.isConnected) text.before(reasoning);
        say(thought, thinking);
        say(text, content);
        this.follow();
      },
      end: (said) => {
        node.classList.remove("streaming");
        if (text.textContent) reasoning.open = false;
        if (said) node.append(make("p", { class: "said" }, said));
        this.follow();
      },
      fail: (error, requestId) => {
        const code = [...new Set([error.status, error.code])].filter(Boolean).join(" ");
        const words = make("p", {}, make("strong", {}, code || "error"), ` ${error.message}`);
        const id = requestId ? [make("span", { class: "sub" }, `request ${requestId}`)] : [];
        node.append(make("div", { class: "failure", role: "alert" }, words, ...id));
        this.follow();
      },
    };
  }

  add(role, name) {
    const text = make("div", { class: "text" });
    const node = make("article", { class: "message", "data-role": role }, make("h3", {}, name), text);
    this.parent.append(node);
    this.follow();
    return { node, text };
  }

  /** Scroll to the end, unless the reader has scrolled away from it. */
  follow() {
    const page = document.scrollingElement;
    if (page.scrollHeight - page.scrollTop - page.clientHeight < 160) page.scrollTop = page.scrollHeight;
  }
}
