// Asks the service. Whatever goes wrong becomes a Refusal whose message says what to do.

const MOST = 8 * 1024 * 1024; // bytes of a request: a larger one is refused while it is still being sent
let token = "";

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useToken(text) {
  token = text.trim();
}

/** The served models, the first being the service's default. */
export async function models() {
  return (await ask("v1/models", {})).models;
}

/** predict, attack or purify for a picture (a Blob), with settings as the query. */
export async function post(route, settings, picture, signal) {
  if (picture.size > MOST) throw new Refusal(413, "The file is too large: 8 MiB at most. Choose a smaller one.");
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value !== null));
  const type = picture.type === "image/jpeg" ? picture.type : "image/png"; // its bytes decide
  return ask(`v1/${route}?${query}`, { method: "POST", body: picture, headers: { "Content-Type": type }, signal });
}

async function ask(address, options) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(address, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The service does not answer. Is it still running?");
  }
  if (answer.ok) return answer.json();
  throw new Refusal(answer.status, inPlainWords(answer, await message(answer)));
}

async function message(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the service answered with status ${answer.status}.`;
  }
}

function inPlainWords(answer, said) {
  if (answer.status === 503) {
    return `The service is busy. Wait ${answer.headers.get("Retry-After") ?? 1} s, then try again. (${said})`;
  }
  if (answer.status === 401) return "The token is missing or wrong. Ask whoever started this service for it.";
  if (answer.status === 415) return "This file is not a PNG or JPEG picture. Choose one that is.";
  return said.charAt(0).toUpperCase() + said.slice(1);
}

/** A picture of an answer (base64 PNG) as a Blob, to be sent again. */
export function blobOf(base64) {
  return new Blob([Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0))], { type: "image/png" });
}
