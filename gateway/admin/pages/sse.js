// Parses the server-sent events of a response body. A read may end anywhere within an event.

/** Yields the data of each event. Comments are skipped. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    text += value;
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const event of whole) {
      const lines = event.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}
