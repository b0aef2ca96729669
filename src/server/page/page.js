"use strict";
// The page of `kvasir serve`: chats over /v1/sessions, and a view of the cache. What models and users
// write is only ever set as textContent.

const $ = (id) => document.getElementById(id);
const KEY = "kvasir-key";
const MISSES = {
  cold: "nothing of it was known",
  diverged: "the text differs from here on",
  evicted: "what comes next was evicted for lack of room",
  disabled: "the cache was not used",
  pool_full: "requests that run use all blocks",
  window: "the model's window was not kept up to here",
  identity_changed: "it was computed by another model or format",
  rope_changed: "the length crossed the model's rotation limit",
  template_rewrote: "the template writes an old turn otherwise",
  retokenized: "the same text has other tokens",
  overtaken: "computing was quicker than loading",
  unreadable: "the disk could not be read",
  remote_down: "the store of the fleet stopped to answer",
};

let current = null;        // the session's id
let running = null;        // an AbortController while an answer comes
const receipts = new Map();  // "id/index": the receipt of an answer of this visit

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function showError(text) {
  $("error").textContent = text;
  $("error").hidden = !text;
}

async function request(method, path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = "Bearer " + key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {method, headers, signal, body: body ? JSON.stringify(body) : undefined});
  if (response.ok) return response;
  let message = response.status + " " + response.statusText;
  try {
    message = (await response.json()).error.message;
  } catch { /* not JSON */ }
  if (response.status === 401) showKeyForm(true);
  throw new Error(message);
}

const call = async (method, path, body) => (await request(method, path, body)).json();
const session = (rest = "", id = current) => "v1/sessions/" + id + rest;

// Runs what a button asks for; shows what goes wrong.
function act(work) {
  return async (event) => {
    event?.preventDefault();
    showError("");
    try {
      await work(event);
    } catch (error) {
      if (error.name !== "AbortError") showError(error.message);
    }
  };
}

// Runs what makes the page longer, and shows its end where the end was shown before.
function keepEnd(grow) {
  const root = document.documentElement;
  const at_end = innerHeight + scrollY >= root.scrollHeight - 40;
  grow();
  if (at_end) scrollTo(0, root.scrollHeight);
}

function showKeyForm(open) {
  $("key-form").hidden = !open;
  $("show-key").setAttribute("aria-expanded", open);
  if (open) $("key").focus();
}

// --- conversations

// Never words of the conversation: a forget would leave them there.
function titleOf(entry) {
  return new Date(entry.created * 1000).toLocaleString();
}

async function listSessions() {
  const {data} = await call("GET", "v1/sessions?limit=50");
  $("sessions").replaceChildren(...data.map((entry) => {
    const open = element("button", {textContent: titleOf(entry) + " (" + entry.messages + ")"});
    open.setAttribute("aria-current", entry.id === current);
    open.onclick = act(() => openSession(entry.id));
    const remove = element("button", {textContent: "Delete"});
    remove.setAttribute("aria-label", "Delete conversation " + titleOf(entry));
    remove.onclick = act(async () => {
      if (!confirm("Delete this conversation, and what the cache holds of it?")) return;
      await call("DELETE", session("", entry.id));
      if (entry.id === current) await openSession(null);
      await listSessions();
    });
    return element("li", {}, open, remove);
  }));
  return data;
}

async function openSession(id) {
  running?.abort();
  current = id;
  const shown = id ? await call("GET", session()) : {messages: []};
  const first = shown.messages[0];
  $("system").value = first && first.role === "system" ? first.content : "";
  await listSessions();
  keepEnd(() => $("messages").replaceChildren(...shown.messages.filter((m) => m.role !== "system").map(messageView)));
}

// Where somebody goes on by keyboard after the messages were shown anew.
function focusOn(index) {
  ($("messages").querySelector("[aria-label='Edit message " + index + "']") || $("text")).focus();
}

async function makeSession() {
  const system = $("system").value.trim();
  const made = await call("POST", "v1/sessions", system && {system});
  current = made.id;
}

function actionButton(name, message, work) {
  const button = element("button", {type: "button", textContent: name});
  button.setAttribute("aria-label", name + " message " + message.index);
  button.onclick = act(work);
  return button;
}

function thoughtView(text, open = false) {
  return element("details", {className: "thought", open}, element("summary", {textContent: "Thoughts"}),
      element("p", {textContent: text}));
}

function messageView(message) {
  const calls = (message.tool_calls || []).map((c) => c.function.name + "(" + c.function.arguments + ")");
  const text = element("p", {className: "text", textContent: [message.content || [], calls].flat().join("\n")});
  const thoughts = message.reasoning_content ? [thoughtView(message.reasoning_content)] : [];
  const article = element("article", {className: message.role},
      element("h3", {textContent: message.role + " " + message.index}), ...thoughts, text);
  article.setAttribute("aria-label", message.role + ", message " + message.index);
  const receipt = receipts.get(current + "/" + message.index);
  if (receipt) article.append(...receiptView(receipt));
  article.append(element("div", {className: "actions"},
      actionButton("Edit", message, () => editMessage(message, article, text)),
      actionButton("Fork", message, async () => {
        const made = await call("POST", session("/fork"), {messages: message.index + 1});
        await openSession(made.id);
        $("text").focus();
      }),
      actionButton("Forget", message, async () => {
        if (!confirm("Take this message out, and erase what the cache holds of it and of all after it?")) return;
        const gone = await call("POST", session("/forget"), {index: message.index});
        await openSession(current);
        focusOn(message.index);
        showError("Forgotten: " + gone.erased_blocks + " blocks with " + gone.erased_tokens + " tokens are erased.");
      })));
  return article;
}

function editMessage(message, article, text) {
  const area = element("textarea", {value: message.content, rows: 4});
  area.setAttribute("aria-label", "New text of message " + message.index);
  const form = element("form", {}, area, element("button", {textContent: "Save"}),
      element("button", {type: "button", textContent: "Cancel", onclick: () => {
        form.replaceWith(text);
        focusOn(message.index);
      }}));
  form.onsubmit = act(async () => {
    await call("PUT", session("/messages/" + message.index), {content: area.value});
    await openSession(current);
    if (message.role === "user") await generate({});
    focusOn(message.index);
  });
  text.replaceWith(form);
  area.focus();
}

// --- receipts

function receiptView(receipt) {
  const parts = [["pool", receipt.reused.pool], ["partial", receipt.reused.partial], ["disk", receipt.reused.disk],
    ["remote", receipt.reused.remote], ["computed", receipt.computed]].filter(([, tokens]) => tokens > 0);
  const words = parts.map(([name, tokens]) => tokens + (name === "computed" ? " computed" : " from " + name)).join(", ");
  const bar = barView(element("div", {className: "bar"}), parts, receipt.prompt_tokens);
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", "Prompt of " + receipt.prompt_tokens + " tokens: " + words);
  const line = ["prompt of " + receipt.prompt_tokens + " tokens: " + words,
    "first token after " + Math.round(receipt.ttft_ms) + " ms"];
  if (receipt.tpot_ms > 0) line.push((1000 / receipt.tpot_ms).toFixed(1) + " tokens/s");
  if (receipt.miss) {
    const {at_token, message_index, reason} = receipt.miss;
    const place = message_index === null ? "" : " (message " + message_index + ")";
    line.push("not reused from token " + at_token + place + ": " + (MISSES[reason] || reason));
  }
  return [bar, element("p", {className: "receipt", textContent: line.join("; ")})];
}

function barView(bar, parts, total) {
  bar.replaceChildren(...parts.map(([name, amount]) => {
    const part = element("span", {className: name, title: name + ": " + amount});
    part.style.width = 100 * amount / total + "%";
    return part;
  }));
  return bar;
}

// --- answers

// Calls take(event) with each event of a stream of server-sent events.
async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") take(JSON.parse(line.slice(6)));
    }
  }
}

// Shows how much of a long prompt is computed, until the first token is there.
async function watchPrompt(state) {
  for (const start = performance.now(); !state.begun; await new Promise((go) => setTimeout(go, 300))) {
    if (performance.now() - start < 500) continue;
    const {data} = await call("GET", "v1/cache/sequences");
    const own = data.find((sequence) => sequence.state !== "decode" && sequence.tokens > 0);
    if (!own || state.begun) continue;
    $("progress").hidden = false;
    $("progress-text").textContent = own.state + ": " + own.computed + " of " + own.tokens + " tokens";
    $("progress-bar").value = own.computed / own.tokens;
  }
}

async function generate(body) {
  const state = {begun: false};
  const controller = running = new AbortController();
  const text = element("p", {className: "text"});
  const article = element("article", {className: "assistant"}, element("h3", {textContent: "assistant"}), text);
  $("messages").append(article);
  $("messages").setAttribute("aria-busy", "true");
  $("stop").hidden = false;
  scrollTo(0, document.documentElement.scrollHeight);
  watchPrompt(state).catch(() => {});
  const id = current;
  try {
    const response = await request("POST", session("/generate"), {...body, stream: true, keep_partial: true},
        controller.signal);
    await readEvents(response, (event) => {
      if (event.error) throw new Error(event.error.message);
      const {content, reasoning_content} = event.choices?.[0]?.delta || {};
      if (content || reasoning_content) {
        state.begun = true;
        $("progress").hidden = true;
        keepEnd(() => {
          if (reasoning_content && !article.querySelector("details")) text.before(thoughtView("", true));
          article.querySelector("details p")?.append(reasoning_content || "");
          text.append(content || "");
        });
      }
      if (event.kvasir) receipts.set(id + "/" + event.session.index, event.kvasir);
    });
  } finally {
    state.begun = true;
    $("progress").hidden = $("stop").hidden = true;
    $("messages").setAttribute("aria-busy", "false");
    if (running === controller) running = null;
    // The server keeps what came before a stop, once it has seen the hang-up.
    if (controller.signal.aborted) await new Promise((go) => setTimeout(go, 300));
    if (current === id) await openSession(id);
  }
}

$("say").onsubmit = act(async () => {
  const text = $("text").value;
  if (!text.trim() || running) return;
  if (!current) await makeSession();
  $("text").value = "";
  $("messages").append(element("article", {className: "user"}, element("h3", {textContent: "user"}),
      element("p", {className: "text", textContent: text})));
  try {
    await generate({messages: [{role: "user", content: text}]});
  } catch (error) {
    if (error.name !== "AbortError" && !$("text").value) $("text").value = text;
    throw error;
  }
});

$("text").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("say").requestSubmit();
  }
};
document.onkeydown = (event) => {
  if (event.key === "Escape") running?.abort();
};
$("stop").onclick = () => running?.abort();
$("new").onclick = act(async () => {
  await openSession(null);
  $("text").focus();
});
$("system-form").onsubmit = act(async () => {
  if (!current) return;
  await call("PUT", session("/system"), {content: $("system").value});
  await openSession(current);
});
$("show-key").onclick = () => showKeyForm($("key-form").hidden);
$("key-form").onsubmit = act(async () => {
  sessionStorage.setItem(KEY, $("key").value);
  $("key").value = "";
  showKeyForm(false);
  await start();
});

// --- the cache

const samples = [];  // blocks that were evicted between two looks
let evicted = null, watching = null;

async function showCache() {
  const state = await call("GET", "v1/cache");
  const blocks = state.cache.blocks;
  const total = blocks.pinned + blocks.idle + blocks.free;
  const parts = [["pinned", blocks.pinned, "used by requests"], ["idle", blocks.idle, "kept for later prompts"],
    ["free", blocks.free, "free"]];
  barView($("blocks"), parts, total || 1);
  $("blocks").setAttribute("aria-label", parts.map(([, amount, words]) => amount + " blocks " + words).join(", "));
  $("blocks-list").replaceChildren(...parts.map(([name, amount, words]) =>
      element("li", {}, element("i", {className: name}), amount + " " + words)));
  if (evicted !== null) samples.push(Math.max(0, blocks.evicted - evicted));
  evicted = blocks.evicted;
  if (samples.length > 100) samples.shift();
  const most = Math.max(1, ...samples);
  $("evictions").replaceChildren(...samples.map((amount, i) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = 58 * amount / most;
    for (const [name, value] of Object.entries({x: i * 3, y: 60 - height, width: 2, height})) bar.setAttribute(name, value);
    return bar;
  }));
  const text = blocks.evicted + " blocks were evicted since the start; at most " + (samples.length ? most : 0) +
      " between two looks, two seconds apart";
  $("evictions-text").textContent = text;
  $("evictions").setAttribute("aria-label", text);
  const {data, has_more} = await call("GET", "v1/cache/prefixes");
  $("prefixes").replaceChildren(prefixTree(data), ...(has_more ? [element("p", {textContent: "and more"})] : []));
}

function prefixTree(runs) {
  const lists = runs.map(() => element("ul"));
  const top = element("ul");
  for (const run of runs) {
    const words = run.tokens + " tokens, " + run.hits + (run.hits === 1 ? " hit" : " hits") +
        (run.used_blocks > 0 ? ", in use" : "");
    const item = element("li", {}, words);
    if (run.text !== null) item.append(" ", element("code", {textContent: run.text}));
    item.append(lists[run.index]);
    (run.parent === null ? top : lists[run.parent]).append(item);
  }
  for (const list of lists) if (!list.children.length) list.remove();
  return runs.length ? top : element("p", {textContent: "Nothing yet."});
}

function show(view) {
  for (const name of ["chat", "cache"]) {
    $(name).hidden = name !== view;
    $("show-" + name).setAttribute("aria-pressed", name === view);
  }
  clearInterval(watching);
  if (view !== "cache") return;
  const look = act(showCache);
  look();
  watching = setInterval(look, 2000);
}
$("show-chat").onclick = () => show("chat");
$("show-cache").onclick = () => show("cache");

const start = act(async () => {
  const models = await call("GET", "v1/models");
  $("model").textContent = models.data[0].id;
  const sessions = await listSessions();
  if (sessions.length) await openSession(sessions[0].id);
});
start();
