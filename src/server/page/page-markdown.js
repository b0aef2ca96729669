// Markdown as models write it: a subset of CommonMark with tables. `parse` makes a tree of plain objects; `Rendered`
// makes elements of it, of the names in TAGS alone, by createElement and textContent. HTML in the text stays text.
// Time is linear in the text: each expression below looks at a bounded part, or is anchored and cannot go back.

export const TAGS = ["p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr", "br", "em", "strong", "del",
  "code", "a", "table", "tr", "th", "td", "pre"];
const MOST_DEEP = 16;            // containers in containers, and emphasis in emphasis; what is deeper is text
const MOST_NODES = 20000;        // of one text; the rest is one paragraph of text
const MOST_INLINE = 100000;      // characters of a paragraph that may have emphasis and links
const MOST_URL = 2000;
const MOST_COLUMNS = 64;
const ENTITIES = {amp: "&", lt: "<", gt: ">", quot: "\"", apos: "'", nbsp: "\u00a0"};

// --- blocks

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`]*$/;
const BULLET = /^( {0,3})([-+*])(?=[ \t]|$)/;
const NUMBER = /^( {0,3})(\d{1,9})([.)])(?=[ \t]|$)/;

const indentOf = (line) => /^ */.exec(line)[0].length;
const isBlank = (line) => line.trim() === "";
const untab = (line) => line.includes("\t") ? line.replace(/^[ \t]+/, (space) => space.replaceAll("\t", "    ")) : line;

function isRule(line) {
  if (!/^ {0,3}[-*_]/.test(line)) return false;
  return /^(?:-{3,}|\*{3,}|_{3,})$/.test(line.replace(/[ \t]/g, ""));
}

// A line that begins another block in the middle of a paragraph.
function interrupts(line) {
  if (/^ {0,3}(?:>|#{1,6}(?:[ \t]|$))/.test(line) || FENCE.test(line) || isRule(line)) return true;
  const number = NUMBER.exec(line);
  if (number) return number[2] === "1" && line.length > number[0].length + 1;
  const bullet = BULLET.exec(line);
  return bullet !== null && line.length > bullet[0].length + 1;
}

function cellsOf(line) {
  const cells = [];
  let cell = "";
  const text = line.trim();
  for (let i = text[0] === "|" ? 1 : 0; i < text.length; ++i) {
    if (text[i] === "\\" && text[i + 1] === "|") {
      cell += "|";
      ++i;
    } else if (text[i] === "|") {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += text[i];
    }
  }
  if (cell.trim() || text.at(-1) !== "|") cells.push(cell.trim());
  return cells;
}

// The alignments of a table's columns, if the line below its head says so.
function alignments(head, line) {
  if (line === undefined || !head.includes("|") || !/^[ |:-]+$/.test(line) || !line.includes("-")) return null;
  const marks = cellsOf(line);
  if (marks.length > MOST_COLUMNS || !marks.every((mark) => /^:?-+:?$/.test(mark))) return null;
  if (cellsOf(head).length !== marks.length) return null;
  return marks.map((mark) => mark.at(-1) !== ":" ? "" : mark[0] === ":" ? "center" : "right");
}

class Parser {
  // `open`: the text goes on, so emphasis and code that are not closed yet are shown as if they were.
  constructor(open) {
    this.open = open;
    this.left = MOST_NODES;
  }

  node(t, c, more) {
    --this.left;
    return {t, c, ...more};
  }

  blocks(lines, depth, is_end) {
    const out = [];
    for (let i = 0; i < lines.length;) {
      if (isBlank(lines[i])) {
        ++i;
        continue;
      }
      const start = i;
      if (this.left <= 0) {
        out.push({t: "p", c: [lines.slice(i).join("\n")], start});
        break;
      }
      const [node, next] = this.block(lines, i, depth, is_end);
      out.push({...node, start});
      i = next;
    }
    return out;
  }

  // The block that begins at a line, and the line after it.
  block(lines, i, depth, is_end) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    if (fence) return this.fenced(lines, i, fence);
    const level = /^ {0,3}(#{1,6})(?:[ \t]|$)/.exec(line);
    if (level) {
      let text = line.trim().slice(level[1].length).trim();
      const end = text.replace(/#+$/, "");
      if (end === "" || /[ \t]$/.test(end)) text = end.trim();
      return [this.heading(level[1].length, text, is_end && i + 1 === lines.length), i + 1];
    }
    if (isRule(line)) return [this.node("hr", []), i + 1];
    if (depth < MOST_DEEP) {
      if (/^ {0,3}>/.test(line)) return this.quote(lines, i, depth, is_end);
      if (BULLET.test(line) || NUMBER.test(line)) return this.list(lines, i, depth, is_end);
    }
    const columns = alignments(line, lines[i + 1]);
    return columns ? this.table(lines, i, columns) : this.paragraph(lines, i, is_end);
  }

  heading(level, text, open) {
    return this.node("h" + Math.min(6, Math.max(3, level + 1)), this.inline(text, open));
  }

  fenced(lines, i, [, mark, language]) {
    const indent = indentOf(lines[i]);
    const close = (line) => {
      const text = line.trim();
      return indentOf(line) < 4 && text.length >= mark.length && text === mark[0].repeat(text.length);
    };
    let end = i + 1;
    while (end < lines.length && !close(lines[end])) ++end;
    const text = lines.slice(i + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line)))).join("\n");
    return [this.node("pre", [text], {language: language.slice(0, 40)}), end + 1];
  }

  quote(lines, i, depth, is_end) {
    const inner = [];
    for (; i < lines.length && /^ {0,3}>/.test(lines[i]); ++i) inner.push(untab(lines[i].replace(/^ {0,3}> ?/, "")));
    return [this.node("blockquote", this.blocks(inner, depth + 1, is_end && i === lines.length)), i];
  }

  list(lines, i, depth, is_end) {
    const first = BULLET.exec(lines[i]) || NUMBER.exec(lines[i]);
    const mark = first.at(-1);  // of its items
    const items = [];
    for (let next; i < lines.length && (next = BULLET.exec(lines[i]) || NUMBER.exec(lines[i])); ) {
      if (next.at(-1) !== mark || isRule(lines[i]) || this.left <= 0) break;
      const inner = [];
      i = this.item(lines, i, next[0].length, inner);
      items.push(this.node("li", this.blocks(inner, depth + 1, is_end && i === lines.length)));
    }
    if (items.length === 0) return this.paragraph(lines, i, is_end);
    return [first.length === 3 ? this.node("ul", items) : this.node("ol", items, {from: Number(first[2])}), i];
  }

  // Takes the lines of one item, without its indent; returns the line after it.
  item(lines, i, mark_length, inner) {
    const rest = untab(lines[i].slice(mark_length));
    const space = indentOf(rest);
    const indent = mark_length + (space > 4 || isBlank(rest) ? 1 : space);
    inner.push(rest.slice(indent - mark_length));
    let in_fence = FENCE.test(inner[0]), after_blank = isBlank(inner[0]);
    for (++i; i < lines.length; ++i) {
      const line = lines[i];
      if (isBlank(line)) {
        if (inner.length === 1 && after_blank) break;
        inner.push("");
      } else if (indentOf(line) >= indent) {
        inner.push(line.slice(indent));
        if (/^ {0,3}(?:```|~~~)/.test(inner.at(-1))) in_fence = !in_fence;
      } else if (!after_blank && !in_fence && !interrupts(line) && !BULLET.test(line) && !NUMBER.test(line)) {
        inner.push(line.trim());
      } else {
        break;
      }
      after_blank = isBlank(line);
    }
    while (inner.length > 1 && inner.at(-1) === "") inner.pop();
    return i;
  }

  table(lines, i, columns) {
    const row = (tag, line) => {
      const cells = cellsOf(line);
      return this.node("tr", columns.map((align, c) => this.node(tag, this.inline(cells[c] || ""), {align})));
    };
    const rows = [row("th", lines[i])];
    for (i += 2; i < lines.length && !isBlank(lines[i]) && !interrupts(lines[i]) && this.left > 0; ++i) {
      rows.push(row("td", lines[i]));
    }
    return [this.node("table", rows), i];
  }

  paragraph(lines, i, is_end) {
    const taken = [lines[i++].trim()];
    for (; i < lines.length && !isBlank(lines[i]) && !interrupts(lines[i]); ++i) {
      if (/^ {0,3}=+ *$/.test(lines[i])) return [this.heading(1, taken.join("\n")), i + 1];
      if (alignments(lines[i], lines[i + 1])) break;
      taken.push(lines[i].trimStart());
    }
    if (i < lines.length && /^ {0,3}-+ *$/.test(lines[i])) return [this.heading(2, taken.join("\n")), i + 1];
    return [this.node("p", this.inline(taken.join("\n").trimEnd(), is_end && i === lines.length)), i];
  }

  inline(text, open = false) {
    if (text.length > MOST_INLINE || this.left <= 0) return text ? [text] : [];
    return new Inline(this, text, open && this.open).read();
  }
}

// --- the text of a block

// The address of a link, or null: a link goes to http, https or mailto alone.
export function safeUrl(text) {
  if (!/^(?:https?:\/\/|mailto:)[^\s<>"\\]+$/i.test(text)) return null;
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const SPECIAL = /[\\`*_~[\]!<&\n]|https?:\/\//g;
const BARE_URL = new RegExp("https?://[^\\s<>\"'`[\\]\\\\|]{1," + MOST_URL + "}", "y");
const ANGLE_URL = new RegExp("<((?:https?://|mailto:)[^\\s<>]{1," + MOST_URL + "})>", "y");
const TARGET = new RegExp("\\(\\s{0,9}(?:<([^<>\\n]{0," + MOST_URL + "})>|((?:[^\\s()<>\\\\]|\\([^\\s()<>\\\\]{0,200}\\)){0," +
    MOST_URL + "}))(?:\\s{1,9}(?:\"[^\"\\n]{0,300}\"|'[^'\\n]{0,300}'))?\\s{0,9}\\)", "y");
const ENTITY = /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6}));/y;
const PUNCTUATION = /[\p{P}\p{S}]/u;

function withoutLinks(nodes) {
  return nodes.flatMap((node) => typeof node === "string" ? [node] : node.t === "a" ? node.c
    : [{...node, c: withoutLinks(node.c)}]);
}

class Inline {
  constructor(parser, text, open) {
    this.parser = parser;
    this.text = text;
    this.open = open;
    this.items = [];      // strings, nodes, and runs of delimiters: {mark, count, opens, closes}
    this.brackets = [];   // those in items that may begin a link
    this.ticks = null;    // where runs of backticks begin, by their length
  }

  say(text) {
    const last = this.items.length - 1;
    if (typeof this.items[last] === "string" && this.brackets.at(-1)?.at !== last) this.items[last] += text;
    else this.items.push(text);
  }

  match(pattern, at) {
    pattern.lastIndex = at;
    return pattern.exec(this.text);
  }

  read() {
    const {text} = this;
    let at = 0;
    while (at < text.length) {
      SPECIAL.lastIndex = at;
      const found = SPECIAL.exec(text);
      if (!found) break;
      if (found.index > at) this.say(text.slice(at, found.index));
      at = this.take(found[0], found.index);
    }
    if (at < text.length) this.say(text.slice(at));
    return this.emphasised(this.items, this.open);
  }

  // Reads what begins with a special character; returns where it ends.
  take(found, at) {
    const {text} = this;
    const next = text[at + 1];
    if (found.length > 1) return this.url(this.match(BARE_URL, at), at, found.length);
    if (found === "\\" && next === "\n" || found === "\n") {
      this.items.push(this.parser.node("br", []));
      return at + (found === "\n" ? 1 : 2);
    }
    if (found === "\\" && next && /[!-/:-@[-`{-~]/.test(next)) {
      this.say(next);
      return at + 2;
    }
    if (found === "`") return this.code(at);
    if (found === "*" || found === "_" || found === "~") return this.delimiters(found, at);
    if (found === "[" || found === "!" && next === "[") {
      this.brackets.push({at: this.items.length, is_image: found === "!"});
      this.items.push(found === "!" ? "![" : "[");
      return at + (found === "!" ? 2 : 1);
    }
    if (found === "]" && this.brackets.length > 0) return this.link(at);
    const angle = found === "<" && this.match(ANGLE_URL, at);
    if (angle && safeUrl(angle[1])) {
      this.items.push(this.parser.node("a", [angle[1]], {href: safeUrl(angle[1])}));
      return at + angle[0].length;
    }
    const entity = found === "&" && this.match(ENTITY, at);
    if (entity) {
      const code = entity[2] ? Number(entity[2]) : parseInt(entity[3], 16);
      const known = entity[1] ? ENTITIES[entity[1]] : code > 31 && code < 0x110000 && String.fromCodePoint(code);
      this.say(known || entity[0]);
      return at + entity[0].length;
    }
    this.say(found);
    return at + 1;
  }

  url(found, at, length) {
    const all = found ? found[0] : "";
    let end = all.length, unopened = all.split(")").length - all.split("(").length;
    for (; end && /[.,;:!?)*_~]/.test(all[end - 1]); --end) {
      if (all[end - 1] === ")" && unopened-- <= 0) break;
    }
    const shown = all.slice(0, end);
    const href = /\w/.test(this.text[at - 1] || "") ? null : safeUrl(shown);
    if (href) this.items.push(this.parser.node("a", [shown], {href}));
    else this.say(this.text.slice(at, at + length));
    return at + (href ? shown.length : length);
  }

  code(at) {
    const {text} = this;
    if (!this.ticks) {
      this.ticks = new Map();
      for (const {0: run, index} of text.matchAll(/`+/g)) {
        if (!this.ticks.has(run.length)) this.ticks.set(run.length, {places: [], next: 0});
        this.ticks.get(run.length).places.push(index);
      }
    }
    let end = at;
    while (text[end] === "`") ++end;
    const runs = this.ticks.get(end - at);
    while (runs && runs.places[runs.next] < end) ++runs.next;
    let close = runs?.places[runs.next];
    if (close === undefined && this.open && end < text.length) close = text.length;
    if (close === undefined) {
      this.say(text.slice(at, end));
      return end;
    }
    let inside = text.slice(end, close).replaceAll("\n", " ");
    if (inside.length > 2 && inside[0] === " " && inside.at(-1) === " " && inside.trim()) inside = inside.slice(1, -1);
    this.items.push(this.parser.node("code", [inside]));
    return Math.min(text.length, close + end - at);
  }

  delimiters(mark, at) {
    const {text} = this;
    let end = at;
    while (text[end] === mark) ++end;
    const before = at > 0 ? text[at - 1] : " ", after = end < text.length ? text[end] : " ";
    const is_left = !/\s/.test(after) && (!PUNCTUATION.test(after) || /\s/.test(before) || PUNCTUATION.test(before));
    const is_right = !/\s/.test(before) && (!PUNCTUATION.test(before) || /\s/.test(after) || PUNCTUATION.test(after));
    const is_word = mark === "_";
    this.items.push({mark, count: end - at, length: end - at,
      opens: is_left && (!is_word || !is_right || PUNCTUATION.test(before)),
      closes: is_right && (!is_word || !is_left || PUNCTUATION.test(after))});
    return end;
  }

  link(at) {
    const {at: begin, is_image} = this.brackets.pop();
    const target = this.match(TARGET, at + 1);
    const href = target && safeUrl((target[1] ?? target[2]).replace(/\\([()])/g, "$1"));
    if (!href) {
      this.say("]");
      return at + 1;
    }
    const inside = withoutLinks(this.emphasised(this.items.splice(begin).slice(1), false));
    if (is_image && this.brackets.length > 0) {
      for (const node of inside) this.items.push(node);
    } else {
      this.items.push(this.parser.node("a", inside.length > 0 ? inside : [href], {href}));
      this.brackets = [];
    }
    return at + 1 + target[0].length;
  }

  // Emphasis of CommonMark: each run that closes looks for the last one that opens and fits.
  emphasised(items, open) {
    const out = [], openers = [];
    const bottoms = new Map();  // below them nothing fits a run of this kind
    for (const item of items) {
      if (typeof item === "string" || item.t) {
        out.push(item);
        continue;
      }
      const run = {...item};
      const kind = run.mark + run.opens + run.length % 3;
      while (run.closes && run.count > 0) {
        let i = openers.length - 1;
        const bottom = bottoms.get(kind) || 0;
        while (i >= bottom && !this.fits(openers[i], run)) --i;
        if (i < bottom) {
          bottoms.set(kind, openers.length);
          break;
        }
        this.wrap(out, openers, i, run);
        for (const [other, height] of bottoms) bottoms.set(other, Math.min(height, openers.length));
      }
      if (run.count === 0) continue;
      if (run.opens) openers.push({run, at: out.length});
      out.push(run);
    }
    if (open) this.closeLast(out, openers);
    return this.joined(out);
  }

  fits({run: opener}, closer) {
    if (opener.mark !== closer.mark || opener.count === 0) return false;
    if (closer.mark === "~") return opener.count === 2 && closer.count === 2;
    const both = opener.closes || closer.opens;
    return !both || (opener.length + closer.length) % 3 !== 0 || (opener.length % 3 === 0 && closer.length % 3 === 0);
  }

  // Makes an element of what is between two runs.
  wrap(out, openers, i, closer) {
    const {run, at} = openers[i];
    openers.length = i + 1;
    const used = run.count >= 2 && closer.count >= 2 ? 2 : 1;
    const inside = out.splice(at + 1);
    const height = 1 + inside.reduce((most, node) => Math.max(most, node.height || 0), 0);
    if (height > MOST_DEEP) {
      out.push(run.mark.repeat(used), ...this.joined(inside), run.mark.repeat(used));
    } else {
      const tag = run.mark === "~" ? "del" : used === 2 ? "strong" : "em";
      out.push(this.parser.node(tag, this.joined(inside), {height}));
    }
    run.count -= used;
    closer.count -= used;
    if (run.count > 0) return;
    openers.pop();
    out.splice(at, 1);
  }

  closeLast(out, openers) {
    const last = openers.at(-1);
    if (!last || last.run.closes || last.run.mark === "~" || last.run.count > 2 || last.at + 1 === out.length) return;
    this.wrap(out, openers, openers.length - 1, {...last.run});
  }

  // Texts that are beside each other as one; runs that emphasise nothing as text.
  joined(items) {
    const out = [];
    for (const item of items) {
      const text = typeof item === "string" ? item : item.t ? null : item.mark.repeat(item.count);
      if (text === null) out.push(item);
      else if (typeof out.at(-1) === "string") out[out.length - 1] += text;
      else out.push(text);
    }
    return out;
  }
}

// Reads a text. Each block has the index of the line in which it begins, `start`.
export function parse(text, open = false) {
  return new Parser(open).blocks(text.replaceAll("\r\n", "\n").replaceAll("\0", "\ufffd").split("\n").map(untab), 0, true);
}

// --- elements

function make(node) {
  if (typeof node === "string") return document.createTextNode(node);
  if (!TAGS.includes(node.t)) throw new Error("no element " + node.t);
  const made = document.createElement(node.t);
  if (node.t === "pre" || node.t === "table") return framed(made, node);
  fill(made, node);
  return made;
}

// Code and tables scroll to the side in a frame, which the keyboard reaches.
function framed(inner, node) {
  const frame = document.createElement("div");
  frame.className = node.t === "pre" ? "code" : "wide";
  if (node.t === "pre") {
    const head = document.createElement("div"), copy = document.createElement("button");
    copy.type = "button";
    copy.textContent = "Copy";
    copy.className = "copy";
    copy.setAttribute("aria-label", "Copy code");
    head.append(document.createElement("span"), copy);
    frame.append(head);
    inner.append(document.createElement("code"));
  }
  const scrolls = node.t === "pre" ? inner : frame;
  scrolls.tabIndex = 0;
  scrolls.setAttribute("role", "group");
  scrolls.setAttribute("aria-label", node.t === "pre" ? "Code" : "Table");
  frame.append(inner);
  fill(frame, node);
  return frame;
}

// Gives an element what a node of its kind says; what is equal stays.
function fill(element, node) {
  if (node.t === "a") {
    element.href = node.href;
    element.target = "_blank";
    element.rel = "noopener noreferrer";
  } else if (node.t === "ol") {
    element.start = node.from;
  } else if (node.align) {
    element.className = node.align;
  } else if (node.t === "pre") {
    const label = element.firstChild.firstChild;
    if (label.textContent !== node.language) label.textContent = node.language;
    return update(element.lastChild.firstChild, node.c);
  } else if (node.t === "table") {
    return update(element.firstChild, node.c);
  }
  update(element, node.c);
}

const nameOf = (node) => node.t === "pre" ? "div.code" : node.t === "table" ? "div.wide" : node.t;
const nameOfElement = (element) => element.localName === "div" ? "div." + element.className : element.localName;

// Makes the children from `first` on those of the nodes, and changes as little as that takes.
function update(parent, nodes, first = 0) {
  let child = parent.childNodes[first] || null;
  for (const node of nodes) {
    const next = child?.nextSibling || null;
    if (!child) {
      parent.append(make(node));
    } else if (typeof node === "string" && child.nodeType === 3) {
      if (child.data !== node) {
        if (node.startsWith(child.data)) child.appendData(node.slice(child.data.length));
        else child.data = node;
      }
    } else if (typeof node !== "string" && child.nodeType === 1 && nameOf(node) === nameOfElement(child)) {
      fill(child, node);
    } else {
      child.replaceWith(make(node));
    }
    child = next;
  }
  while (child) {
    const next = child.nextSibling;
    child.remove();
    child = next;
  }
}

// A last line that may become a mark of something else: it is shown once the next character says what it is.
const UNDECIDED = /(?:^|\n)[ >]*(?:[|:\- ]{1,200}|`{1,9}|~{1,9}|#{1,6}|[*+_=]{1,9}|\d{1,9}[.)]?) ?$/;

// A text that grows, in an element. Its last blocks alone are read again when it grows.
export class Rendered {
  constructor(element) {
    this.element = element;
    this.text = "";
    this.settled = 0;   // characters of the blocks that no longer change, and their number
    this.blocks = 0;
  }

  append(text, is_end = false) {
    this.text += text;
    const rest = this.text.slice(this.settled);
    let shown = rest;
    if (!is_end) {
      const held = UNDECIDED.exec(rest.slice(-240));
      if (held) shown = rest.slice(0, Math.max(0, rest.length - held[0].length));
    }
    const blocks = parse(shown, !is_end);
    update(this.element, blocks, this.blocks);
    if (shown.includes("\r")) return;
    // Whether a block begins in a line is certain once that line and the next one are whole.
    const whole = shown.split("\n").length - 2;
    let last = blocks.length - 1;
    while (last > 0 && blocks[last].start >= whole) --last;
    if (last < 1) return;
    let at = 0;
    for (let line = blocks[last].start; line > 0; --line) at = shown.indexOf("\n", at) + 1;
    this.settled += at;
    this.blocks += last;
  }
}
