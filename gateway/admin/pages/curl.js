// Turns a request into a curl command. It contains no key; the variable `$SLOTGATE_KEY` stands for it.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlLine(origin, body) {
  return [
    `curl -N ${origin}/v1/chat/completions`,
    '  -H "Authorization: Bearer $SLOTGATE_KEY"',
    "  -H 'Content-Type: application/json'",
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n");
}
