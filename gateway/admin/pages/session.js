// The operator's session. The browser keeps its cookie, which no script can read.
//
// The page keeps the key in memory only, for as long as it is open. A restarted gateway has forgotten its sessions;
// with the key, the page signs in again without asking the operator.

const SESSION = "/admin/session";
const tabs = new BroadcastChannel("slotgate session");
let key = "";

/** The error that the gateway answered a request with. */
export class Refused extends Error {
  constructor(status, error = {}) {
    super(error.message || `the gateway answered with status ${status}`);
    this.status = status;
    this.code = error.code;
  }
}

/** Resolves to true if the browser has a valid session cookie. */
export async function signedIn() {
  const answer = await fetch(SESSION);
  return answer.ok && (await answer.json()).signed_in;
}

/** Sign in with this key. Throws `Refused`. */
export async function signIn(given) {
  await callGateway("POST", SESSION, { key: given });
  key = given;
}

/** Sign in again with the key that this page has in memory. Resolves to false if it has none or it is refused. */
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

/** Sign out in all tabs, because a tab that still had the key would open a new session. */
export async function signOut() {
  key = "";
  tabs.postMessage("signed out");
  await callGateway("DELETE", SESSION);
}

/** Call `callback` when another tab has signed out. */
export function onSignedOutElsewhere(callback) {
  tabs.onmessage = () => {
    key = "";
    callback();
  };
}

/** Send a JSON request to the gateway and resolve to the JSON of its answer. Throws `Refused`. */
export async function callGateway(method, path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, content.error);
  return content;
}
