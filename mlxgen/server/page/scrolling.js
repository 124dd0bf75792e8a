// The place in a conversation: follows an answer that grows, unless somebody has scrolled up.

const NEAR = 80; // pixels from the end within which the page follows

export class Scrolling {
  #box;
  #newest;

  /** `newest` is the button that leads back to the end; it is shown only away from it. */
  constructor(box, newest) {
    this.#box = box;
    this.#newest = newest;
    newest.addEventListener("click", () => {
      this.toEnd();
      box.focus({ preventScroll: true });
    });
    box.addEventListener("scroll", () => this.#show(), { passive: true });
    new ResizeObserver(() => this.#show()).observe(box);
  }

  get #isNear() {
    const { scrollHeight, scrollTop, clientHeight } = this.#box;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }

  /** Change what is shown by `change`, and stay at the end if that is where the page was. */
  around(change) {
    const follows = this.#isNear;
    change();
    if (follows) this.toEnd();
    else this.#show();
  }

  toEnd() {
    this.#box.scrollTop = this.#box.scrollHeight;
    this.#show();
  }

  toStart() {
    this.#box.scrollTop = 0;
  }

  #show() {
    this.#newest.hidden = this.#isNear;
  }
}
