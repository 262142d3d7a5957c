// Receives live snapshots of the gateway while the page is visible. It reconnects after a failure.
//
//     closed --open()--> connecting --event--> live --silence, error--> stale --reconnect--> connecting

import { signedIn, signInAgain } from "./session.js";

const SILENCE_MS = 4000;
const RETRY_MS = 1000;
const RETRY_AT_MOST_MS = 5000;

export class Feed {
  /** Calls `onSnapshot(snapshot)`, `onState("live" | "stale")` and `onSignedOut()`. */
  constructor({ onSnapshot, onState, onSignedOut }) {
    Object.assign(this, { onSnapshot, onState, onSignedOut });
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
      this.onSnapshot(JSON.parse(data));
    };
    source.onerror = () => this.lost();
    this.expect();
  }

  disconnect() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** Wait for the next event. If none comes for `SILENCE_MS`, treat the connection as lost. */
  expect() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lost(), SILENCE_MS);
  }

  lost() {
    this.disconnect();
    this.onState("stale");
    const wait = Math.min(RETRY_MS * 2 ** this.failures, RETRY_AT_MOST_MS);
    this.failures += 1;
    this.timer = setTimeout(() => this.reconnect(), wait);
  }

  async reconnect() {
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
