// Markdown as DOM nodes. The library only reads the text into tokens; nodes are made here, so nothing in an answer is ever taken for
// HTML: its tags are shown as text, and links lead to http, https and mailto alone.

const lexer = () => globalThis.marked?.lexer ?? globalThis.marked?.marked?.lexer;

export function renderMarkdown(target, source) {
  const lex = lexer();
  target.replaceChildren();
  target.classList.toggle("plain", !lex);
  if (!lex) {
    target.textContent = source;
    return;
  }
  appendBlocks(target, lex(source));
}

function element(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

// The lexer escapes some texts for HTML; here they become text nodes, which need none.
const entities = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };
const plain = (text) => text.replace(/&(amp|lt|gt|quot|#39);/g, (entity) => entities[entity]);

function appendBlocks(parent, tokens) {
  for (const token of tokens) {
    switch (token.type) {
      case "space":
      case "def":
        break;
      case "heading":
        parent.append(inline(element(`h${Math.min(6, token.depth + 2)}`), token.tokens)); // below the page's own headings
        break;
      case "paragraph":
        parent.append(inline(element("p"), token.tokens));
        break;
      case "text":
        if (token.tokens) inline(parent, token.tokens);
        else parent.append(plain(token.text));
        break;
      case "code": {
        const pre = element("pre", element("code", token.text));
        pre.tabIndex = 0; // it may scroll
        parent.append(pre);
        break;
      }
      case "blockquote": {
        const quote = element("blockquote");
        appendBlocks(quote, token.tokens);
        parent.append(quote);
        break;
      }
      case "list": {
        const list = element(token.ordered ? "ol" : "ul");
        if (token.ordered && token.start !== 1) list.start = token.start;
        for (const item of token.items) {
          const entry = element("li");
          if (item.task) entry.append(item.checked ? "☑ " : "☐ ");
          appendBlocks(entry, item.tokens);
          list.append(entry);
        }
        parent.append(list);
        break;
      }
      case "table":
        parent.append(table(token));
        break;
      case "hr":
        parent.append(element("hr"));
        break;
      default:
        parent.append(element("p", token.raw ?? ""));
    }
  }
}

function table(token) {
  const row = (cells, name) => element("tr", ...cells.map((cell) => inline(element(name), cell.tokens)));
  return element("table", element("thead", row(token.header, "th")), element("tbody", ...token.rows.map((cells) => row(cells, "td"))));
}

function inline(parent, tokens) {
  for (const token of tokens ?? []) {
    switch (token.type) {
      case "strong":
        parent.append(inline(element("strong"), token.tokens));
        break;
      case "em":
        parent.append(inline(element("em"), token.tokens));
        break;
      case "del":
        parent.append(inline(element("del"), token.tokens));
        break;
      case "codespan":
        parent.append(element("code", plain(token.text)));
        break;
      case "br":
        parent.append(element("br"));
        break;
      case "link": {
        const content = inline(element("a"), token.tokens);
        if (/^(https?:|mailto:)/i.test(token.href)) {
          content.href = token.href;
          content.rel = "noopener noreferrer";
          content.target = "_blank";
          parent.append(content);
        } else {
          parent.append(...content.childNodes);
        }
        break;
      }
      case "image": // no answer makes this page fetch anything
        parent.append(token.text || token.href);
        break;
      case "escape":
      case "text":
        if (token.tokens) inline(parent, token.tokens);
        else parent.append(plain(token.text));
        break;
      default:
        parent.append(token.raw ?? "");
    }
  }
  return parent;
}
