// A request as a line for the shell. No key in it: `$SLOTGATE_KEY` stands for one.

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function curlLine(origin, body) {
  return [
    `curl -N ${origin}/v1/chat/completions`,
    '  -H "Authorization: Bearer $SLOTGATE_KEY"',
    "  -H 'Content-Type: application/json'",
    `  -d ${quoted(JSON.stringify(body))}`,
  ].join(" \\\n");
}
