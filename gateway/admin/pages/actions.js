// The actions of an operator. Each asks for confirmation first.

import { confirm } from "./confirm.js";
import { callGateway } from "./session.js";

const QUESTIONS = {
  drain: ["Drain", "It gets no new requests. Running requests finish."],
  resume: ["Resume", "It gets new requests again."],
  restart: ["Restart", "Its process stops when its requests have finished or their time limit has passed, and then starts again."],
  load: ["Load", "Its process is started, even if no request needs its model."],
  unload: ["Unload", "Its process stops when its requests have finished or their time limit has passed."],
};

export const labelOf = (action) => QUESTIONS[action]?.[0] ?? action;

/** Confirm an action on a backend, then send it. Throws `Refused`. */
export async function runBackendAction(name, action) {
  const [label, text] = QUESTIONS[action];
  if (await confirm(`${label} ${name}?`, text, label)) {
    await callGateway("POST", `/admin/backends/${encodeURIComponent(name)}/${action}`);
  }
}

/** Confirm, then cancel a request. Throws `Refused`. */
export async function cancelRequest({ id, tenant }) {
  const text = `The request of tenant ${tenant} ends with an error that its client receives. Its slot is released.`;
  if (await confirm(`Cancel request ${id}?`, text, "Cancel request")) {
    const query = new URLSearchParams({ tenant });
    await callGateway("POST", `/admin/requests/${encodeURIComponent(id)}/cancel?${query}`);
  }
}
