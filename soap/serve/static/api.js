// Requests to the service. A failed request throws a PageError whose message says what to do.

const MAX_BODY_BYTES = 8 * 1024 * 1024; // the limit of the service
let token = "";

/** An error whose message is for the user. status: of the HTTP response, 0 without one. */
export class PageError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function setToken(text) {
  token = text.trim();
}

/** The served models; the first is the default of the service. */
export async function models() {
  return (await request("v1/models", {})).models;
}

/** The response of predict, attack or purify to a picture (a Blob), with settings as the query. */
export async function post(route, settings, picture, signal) {
  if (picture.size > MAX_BODY_BYTES) {
    throw new PageError(413, "The file is too large: 8 MiB at most. Choose a smaller one.");
  }
  const query = new URLSearchParams(Object.entries(settings).filter(([, value]) => value !== null));
  const type = picture.type === "image/jpeg" ? picture.type : "image/png"; // the service checks the bytes
  return request(`v1/${route}?${query}`, { method: "POST", body: picture, headers: { "Content-Type": type }, signal });
}

async function request(address, options) {
  const headers = { ...options.headers };
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(address, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new PageError(0, "The service does not respond. Is it still running?");
  }
  if (response.ok) return response.json();
  throw new PageError(response.status, userMessage(response, await serviceMessage(response)));
}

async function serviceMessage(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `the service returned status ${response.status}.`;
  }
}

function userMessage({ status, headers }, message) {
  if (status === 503) {
    return `The service is busy. Wait ${headers.get("Retry-After") ?? 1} s, then try again. (${message})`;
  }
  if (status === 401) return "The token is missing or wrong. The administrator of this service has it.";
  if (status === 415) return "This file is not a PNG or JPEG picture. Choose a PNG or JPEG.";
  return message.charAt(0).toUpperCase() + message.slice(1);
}

/** A picture of a response (base64 PNG) as a Blob, for a next request. */
export function blobOf(base64) {
  return new Blob([Uint8Array.from(atob(base64), (character) => character.charCodeAt(0))], { type: "image/png" });
}
