// A dialog that asks before an action, so that a single click by mistake changes nothing.

import { byId, say } from "./dom.js";

/** Resolves to true if the operator confirms. Escape means no, and the focus is on the button that means no. */
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
