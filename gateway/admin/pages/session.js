// The operator's session. The cookie is the browser's and no script sees it.
//
// The key is kept here, in this page's memory and nowhere else, for as long as the page is open: a gateway that was
// restarted has forgotten its sessions, and the page goes on without asking again.

const SESSION = "/admin/session";
const tabs = new BroadcastChannel("slotgate session");
let key = "";

/** What the gateway says of a request that it refused. */
export class Refused extends Error {
  constructor(status, error = {}) {
    super(error.message || `the gateway answered with status ${status}`);
    this.status = status;
    this.code = error.code;
  }
}

export async function signedIn() {
  const answer = await fetch(SESSION);
  return answer.ok && (await answer.json()).signed_in;
}

/** Raises `Refused`. */
export async function signIn(given) {
  await asked("POST", SESSION, { key: given });
  key = given;
}

/** Sign in once more with the key that this page was given, if it was; returns whether that worked. */
export async function signInAgain() {
  if (!key) return false;
  try {
    await signIn(key);
    return true;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    key = "";
    return false;
  }
}

/** Of all tabs: one that still had the key would open the session again. */
export async function signOut() {
  key = "";
  tabs.postMessage("signed out");
  await asked("DELETE", SESSION);
}

/** Called when another tab has signed out. */
export function onSignedOutElsewhere(callback) {
  tabs.onmessage = () => {
    key = "";
    callback();
  };
}

/** Ask the gateway for something, in JSON. Raises `Refused`. */
export async function asked(method, path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, said.error);
  return said;
}
