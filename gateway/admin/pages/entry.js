// Shows the sign-in form while there is no session, and the page's content while there is one.

import { byId, sayOrHide } from "./dom.js";
import { onSignedOutElsewhere, Refused, signedIn, signIn, signOut } from "./session.js";

/** Calls `onOpen` whenever the content is shown, and `onShut` when the operator signs out, also in another tab. */
export async function enter({ onOpen, onShut }) {
  const form = byId("sign-in-form");
  const field = byId("key");

  function show(open) {
    byId("sign-in").hidden = open;
    byId("content").hidden = !open;
    byId("sign-out").hidden = !open;
    if (open) onOpen();
    else field.focus();
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const given = field.value.trim();
    sayOrHide(byId("sign-in-error"), "");
    try {
      await signIn(given);
      field.value = "";
      show(true);
    } catch (error) {
      sayOrHide(byId("sign-in-error"), error instanceof Refused ? sentence(error) : "The gateway cannot be reached.");
      field.select();
    }
  });

  byId("sign-out").addEventListener("click", async () => {
    onShut();
    await signOut().catch(() => {});
    show(false);
  });

  onSignedOutElsewhere(() => {
    onShut();
    show(false);
  });

  document.querySelector(`nav a[href="${location.pathname}"]`)?.setAttribute("aria-current", "page");
  show(await signedIn().catch(() => false));
  return { shut: () => show(false) };
}

function sentence(error) {
  const text = error.message;
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}
