// The live pictures of the gateway, for as long as the page is looked at; it connects again by itself.
//
//     closed --open()--> connecting --event--> live --silence, error--> stale --again--> connecting

import { signedIn, signInAgain } from "./session.js";

const SILENCE_MS = 4000;
const AGAIN_MS = 1000;
const AGAIN_AT_MOST_MS = 5000;

export class Feed {
  /** `onPicture(picture)`, `onState("live" | "stale")`, `onSignedOut()` */
  constructor({ onPicture, onState, onSignedOut }) {
    Object.assign(this, { onPicture, onState, onSignedOut });
    this.source = null;
    this.timer = 0;
    this.failures = 0;
    this.wanted = false;
    document.addEventListener("visibilitychange", () => {
      if (!this.wanted) return;
      if (document.hidden) this.disconnect();
      else this.connect();
    });
  }

  open() {
    this.wanted = true;
    this.connect();
  }

  close() {
    this.wanted = false;
    this.disconnect();
  }

  connect() {
    this.disconnect();
    const source = new EventSource("/admin/events");
    this.source = source;
    source.onmessage = ({ data }) => {
      this.failures = 0;
      this.expect();
      this.onState("live");
      this.onPicture(JSON.parse(data));
    };
    source.onerror = () => this.lost();
    this.expect();
  }

  disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** The next event is due: without one for a while, the connection is as good as gone. */
  expect() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lost(), SILENCE_MS);
  }

  lost() {
    this.disconnect();
    this.onState("stale");
    const wait = Math.min(AGAIN_MS * 2 ** this.failures, AGAIN_AT_MOST_MS);
    this.failures += 1;
    this.timer = setTimeout(() => this.again(), wait);
  }

  async again() {
    try {
      if (!((await signedIn()) || (await signInAgain()))) {
        this.close();
        this.onSignedOut();
        return;
      }
    } catch {
      if (this.wanted) this.lost();
      return;
    }
    if (this.wanted) this.connect();
  }
}
