// One question at a time, in a dialog: nothing is ordered by a slip of the finger.

import { byId, say } from "./dom.js";

/** Resolves to whether the answer was yes. Escape is no, and no is what has the focus. */
export function confirm(title, text, action) {
  const dialog = byId("confirm");
  say(byId("confirm-title"), title);
  say(byId("confirm-text"), text);
  say(byId("confirm-yes"), action);
  return new Promise((resolve) => {
    byId("confirm-yes").onclick = () => dialog.close("yes");
    byId("confirm-no").onclick = () => dialog.close("no");
    dialog.onclose = () => resolve(dialog.returnValue === "yes");
    dialog.returnValue = "no";
    dialog.showModal();
    byId("confirm-no").focus();
  });
}
