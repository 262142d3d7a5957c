// What an operator can order, each with the question that comes before it.

import { confirm } from "./confirm.js";
import { asked } from "./session.js";

const QUESTIONS = {
  drain: ["Drain", "It gets no new work. What runs on it goes on."],
  resume: ["Resume", "It gets work again."],
  restart: ["Restart", "Its process is stopped when its requests have ended or had their time, and started again."],
  load: ["Load", "Its process is started, whether or not somebody asks for its model."],
  unload: ["Unload", "Its process is stopped when its requests have ended or had their time."],
};

export const wordFor = (order) => QUESTIONS[order]?.[0] ?? order;

/** Ask, then order. Raises `Refused`. */
export async function orderBackend(name, order) {
  const [word, text] = QUESTIONS[order];
  if (await confirm(`${word} ${name}?`, text, word)) {
    await asked("POST", `/admin/backends/${encodeURIComponent(name)}/${order}`);
  }
}

/** Ask, then end a request. Raises `Refused`. */
export async function cancelRequest({ id, tenant }) {
  const text = `The request of ${tenant} ends with an error that its client can read, and its slot is given back.`;
  if (await confirm(`Cancel request ${id}?`, text, "Cancel it")) {
    const query = new URLSearchParams({ tenant });
    await asked("POST", `/admin/requests/${encodeURIComponent(id)}/cancel?${query}`);
  }
}
