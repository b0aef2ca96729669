// The view of the cache: what prompts of the last hour found, memory and disk, and what is kept, as a tree.
import {$, act, bytes, call, count, element, fillBar, legendItem} from "./page-parts.js";
import {SOURCES} from "./page-receipts.js";

const SVG = "http://www.w3.org/2000/svg";
let watches = 0, last_tree = "";

// Looks again two seconds after each answer, until it is called again.
export async function watchCache(is_shown) {
  const own = ++watches;
  const look = act(showCache, true);
  while (is_shown && own === watches) {
    await look();
    await new Promise((go) => setTimeout(go, 2000));
  }
}

async function showCache() {
  const state = await call("GET", "v1/cache");
  showHour(state.cache.last_hour);
  showMemory(state);
  showDisk(state.cache.disk, state.cache.remote);
  const prefixes = await call("GET", "v1/cache/prefixes");
  const text = JSON.stringify(prefixes);
  if (text === last_tree) return;  // what is focused or unfolded stays so
  last_tree = text;
  $("prefixes").replaceChildren(prefixTree(prefixes.data), ...(prefixes.has_more ? ["and more"] : []));
}

// --- the last hour

function showHour(hour) {
  const reused = hour.prompt - hour.computed;
  const share = hour.prompt ? Math.round(100 * reused / hour.prompt) + "%" : "–";
  $("hour-share").textContent = share;
  $("hour-text").textContent = hour.prompt
    ? "of " + count(hour.prompt, "prompt token") + " in " + count(hour.answers, "answer") + " were in the cache"
    : "Nothing was asked within the last hour.";
  const amounts = {computed: hour.computed};
  for (const name of ["pool", "partial", "disk", "remote"]) amounts[name] = hour["reused_" + name];
  const parts = Object.keys(SOURCES).filter((name) => amounts[name] > 0).map((name) => [name, amounts[name]]);
  const words = parts.map(([name, amount]) => amount.toLocaleString("en") + " " + SOURCES[name]);
  fillBar($("hour-bar"), parts, hour.prompt).setAttribute("aria-label", words.join(", ") || "nothing yet");
  $("hour-list").replaceChildren(...parts.map(([name], i) => legendItem(name, words[i])));
  const most = Math.max(1, ...hour.minutes.map(([prompt]) => prompt));
  const rect = (i, from, amount, name) => {
    const made = document.createElementNS(SVG, "rect");
    const values = {x: i * 10 + 1, y: 60 * (1 - (from + amount) / most), width: 8, height: 60 * amount / most, class: name};
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  };
  $("hour-chart").replaceChildren(...hour.minutes.flatMap(([prompt, found], i) => prompt === 0 ? []
    : [rect(i, 0, found, "pool"), rect(i, found, prompt - found, "computed")]));
  $("hour-chart").setAttribute("aria-label", "Prompt tokens of each minute, at most " + most);
}

// --- memory and disk

function showBar(name, parts, total, text) {
  fillBar($(name), parts, total).setAttribute("aria-label", parts.map(([, , words]) => words).join(", ") || text);
  $(name + "-list").replaceChildren(...parts.map(([part, , words]) => legendItem(part, words)));
  $(name + "-text").textContent = text;
}

function showMemory(state) {
  const {blocks} = state.cache;
  const most = "The server takes " + bytes(state.total_bytes + state.process_bytes) + " at most, " +
      bytes(state.process_bytes) + " of it for the process.";
  if (!blocks) {  // several keys: how full the pool is says what others do
    return showBar("blocks", [], 1, most + " How much is in use is shown to the operator.");
  }
  const size = (amount) => bytes(amount * state.block_bytes);
  const parts = [["pinned", blocks.pinned, size(blocks.pinned) + " used by requests"],
    ["idle", blocks.idle, size(blocks.idle) + " kept for later prompts"],
    ["free", blocks.free, size(blocks.free) + " free"]];
  const all = blocks.pinned + blocks.idle + blocks.free;
  showBar("blocks", parts, all, count(state.cache.tokens.cached, "token") + " cached in " + size(all) + " of KV; " +
      count(blocks.evicted, "block") + " evicted since the start. " + most);
}

function showDisk(disk, remote) {
  $("disk-section").hidden = disk === undefined;
  if (disk === undefined) return;
  let text = "This server keeps nothing on a disk.";
  let parts = [];
  if (disk?.folder) {
    const room = Math.max(0, disk.cap_bytes - disk.used_bytes);
    parts = [["disk", disk.used_bytes, bytes(disk.used_bytes) + " used"]];
    if (disk.cap_bytes > 0) parts.push(["free", room, bytes(room) + " free"]);
    text = count(disk.blocks, "block") + " in " + disk.folder + "; " + bytes(disk.written_today_bytes) +
        " written today." + (disk.state === "on" ? "" : " The disk is " + disk.state + ": " + disk.reason + ".");
  }
  if (remote) text += " The fleet's store at " + remote.host + " is " + remote.state + ".";
  showBar("disk", parts, disk?.cap_bytes || disk?.used_bytes || 1, text);
}

// --- what is kept

function prefixTree(runs) {
  const lists = runs.map(() => element("ul"));
  const top = element("ul");
  for (const run of runs) {
    const facts = [count(run.tokens, "token"), count(run.hits, "hit")];
    if (run.used_blocks > 0) facts.push("in use");
    const item = element("li", {}, element("span", {className: "facts", textContent: facts.join(" · ")}));
    if (run.text !== null) item.append(element("code", {textContent: run.text}));
    item.append(lists[run.index]);
    (run.parent === null ? top : lists[run.parent]).append(item);
  }
  for (const list of lists) if (!list.children.length) list.remove();
  return runs.length ? top : element("p", {textContent: "Nothing yet."});
}
