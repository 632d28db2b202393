/** A reply's text, with its heard and remaining parts. */

import { createElement } from "./dom.js";

export class ReplyText {
  /** @type {{heard: string, rest: string, cut: boolean} | undefined} */
  #shown;

  constructor() {
    this.heard = createElement("span", { className: "heard" });
    this.cut = createElement("span", { className: "cut", hidden: true });
    this.rest = createElement("span", { className: "rest" });
    this.element = createElement("p", { className: "said", dir: "auto" }, this.heard, this.cut, this.rest);
  }

  /** @param {import("../response.js").SpokenResponse} response */
  show(response) {
    const { heard, rest, cut } = this.#split(response);
    if (this.#shown?.heard === heard && this.#shown.rest === rest && this.#shown.cut === cut) return;
    this.#shown = { heard, rest, cut };
    this.heard.textContent = heard;
    this.rest.textContent = rest;
    this.element.dataset.cut = String(cut);
    this.cut.hidden = !cut;
    if (cut) this.#mark(response, rest);
  }

  /** @param {import("../response.js").SpokenResponse} response */
  #split(response) {
    const { text, heard, over, status } = response;
    if (heard !== null) return { heard: heard.text, rest: heard.remaining, cut: heard.remaining.trim() !== "" };
    if (over && status === "completed") return { heard: text, rest: "", cut: false };
    const num_heard = response.heardCharCount();
    return { heard: text.slice(0, num_heard), rest: text.slice(num_heard), cut: false };
  }

  /** @param {import("../response.js").SpokenResponse} response @param {string} rest */
  #mark({ heard, status }, rest) {
    const seconds = ((heard?.played_ms ?? 0) / 1000).toFixed(2);
    const what = status === "failed" ? "ended" : "interrupted";
    this.cut.replaceChildren(
      createElement("span", { className: "unseen" }, ` [${what} after ${seconds} s; not heard:] `),
      createElement("span", { ariaHidden: "true", title: `${what} after ${seconds} s` }, `${seconds} s`),
    );
    this.rest.title = `not heard: ${rest.trim().length} characters`;
  }
}
