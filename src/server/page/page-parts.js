// What all parts of the page use: elements, calls of the server, and where messages to the reader stand.

const KEY = "kvasir-key";
export const GONE = "This conversation was deleted or is on another server. Choose another one, or begin a new one.";

export const $ = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

export function button(text, label, work) {
  const made = element("button", {type: "button", textContent: text, onclick: act(work)});
  if (label) made.setAttribute("aria-label", label);
  return made;
}

// Errors and notes stand above the message box, which is always in view.
export function showError(text) {
  $("error-text").textContent = text;
  $("error").hidden = !text;
}

export function showNote(text) {
  $("note").textContent = text;
  $("note").hidden = !text;
}

// Runs what a button asks for; shows what goes wrong. What is shown goes, unless `stays`.
export function act(work, stays = false) {
  return async (event) => {
    event?.preventDefault();
    if (!stays) showError("");
    if (!stays) showNote("");
    try {
      await work(event);
    } catch (error) {
      if (error.name === "AbortError") return;
      showError(error instanceof TypeError ? "The server does not answer: " + error.message : error.message);
    }
  };
}

let on_unauthorized = () => {};
export const setOnUnauthorized = (work) => on_unauthorized = work;

// The key stays in the tab.
export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) => key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY);

// An error in words for people: what is wrong comes first, the name of the field last.
export function errorText({message, code, n_prompt_tokens, n_prompt_tokens_is_least: is_least, n_ctx}) {
  if (code === "invalid_api_key") {
    return hasKey() ? "The server does not know this API key." : "The server asks for an API key.";
  }
  if (n_prompt_tokens) {
    return "This conversation is too long: it has " + (is_least ? "more than " : "") +
      count(n_prompt_tokens - (is_least ? 1 : 0), "token") + ", and the model reads " + n_ctx.toLocaleString("en") +
      " at most. Shorten the question, edit or forget messages, or begin a new conversation.";
  }
  const [, field, text] = /^([a-z][\w.[\]]*): (.+)$/s.exec(message) || [];
  return text ? text[0].toUpperCase() + text.slice(1) + " (" + field + ")" : message;
}

export async function request(method, path, body, signal) {
  const headers = {};
  if (hasKey()) headers.Authorization = "Bearer " + sessionStorage.getItem(KEY);
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {method, headers, signal, body: body ? JSON.stringify(body) : undefined});
  if (response.ok) return response;
  let message = response.status + " " + response.statusText;
  try {
    message = errorText((await response.json()).error);
  } catch { /* not JSON */ }
  if (response.status === 401) on_unauthorized();
  if (response.status === 404 && path.startsWith("v1/sessions/")) message = GONE;
  throw new Error(message);
}

export const call = async (method, path, body) => (await request(method, path, body)).json();

// What the browser keeps between visits: numbers and settings, never words of a conversation.
export function kept(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch { /* no room, or not allowed: it is gone after this visit */ }
}

export async function copyText(text, from) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
  } else {  // a page that came by http from another machine
    const area = element("textarea", {value: text});
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = from.textContent;
  from.textContent = "Copied";
  from.focus();
  setTimeout(() => from.textContent = before, 1500);
}

// A bar of parts: [class, amount, words]. With `legend` the words and amounts are listed below it.
export function fillBar(bar, parts, total) {
  bar.setAttribute("role", "img");
  bar.replaceChildren(...parts.filter(([, amount]) => amount > 0).map(([name, amount]) => {
    const part = element("span", {className: name});
    part.style.width = 100 * amount / (total || 1) + "%";
    return part;
  }));
  return bar;
}

export const legendItem = (name, words) => element("li", {}, element("i", {className: name}), words);

export const count = (number, noun) => number.toLocaleString("en") + " " + noun + (number === 1 ? "" : "s");

export function bytes(amount) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; amount >= 1024 && unit + 1 < units.length; ++unit) amount /= 1024;
  return (unit === 0 || amount >= 100 ? Math.round(amount) : amount.toFixed(1)) + " " + units[unit];
}
