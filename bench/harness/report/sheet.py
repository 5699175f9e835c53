"""How the page looks: on a phone and on a desk, by day and by night, and on paper."""

from __future__ import annotations

__all__ = ["SHEET"]

SHEET = """\
:root {
  --back: #ffffff; --ink: #1c1c1a; --quiet: #62625c; --edge: #dededa; --stripe: #f6f6f3;
  --ours: #c23a05; --ours-back: #fdeee7; --share: 0%; --filled: #e4e9ef; --good: #17692f; --bad: #a8201a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --back: #14171a; --ink: #e6e6e1; --quiet: #a0a09a; --edge: #33383d; --stripe: #1b1f23;
    --ours: #ff8a5c; --ours-back: #33211a; --filled: #27313c; --good: #6fcf8a; --bad: #ff8b85;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem clamp(0.8rem, 3vw, 2.5rem) 4rem; max-width: 84rem;
  background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
}
h1 { font-size: clamp(1.6rem, 4vw, 2.3rem); line-height: 1.2; margin: 0.5rem 0 1rem; }
h2 { font-size: 1.4rem; margin: 2.8rem 0 0.8rem; }
h3 { font-size: 1.1rem; margin: 2.2rem 0 0.3rem; }
h4 { font-size: 0.92rem; margin: 1.4rem 0 0.2rem; }
p { margin: 0.4rem 0; max-width: 60rem; }
header p:nth-of-type(2) { font-size: 1.15rem; font-weight: 600; }
a { color: inherit; }
.note { color: var(--quiet); font-size: 0.85rem; }
nav { margin: 1.5rem 0; padding: 0.8rem 1rem; border: 1px solid var(--edge); border-radius: 0.6rem; font-size: 0.9em; }
nav ul { margin: 0; padding: 0; list-style: none; columns: 20rem; }
nav li { break-inside: avoid; }
nav li ul { columns: auto; padding-left: 1rem; font-size: 0.85rem; color: var(--quiet); }
nav > ul > li:has(ul) { break-inside: auto; margin-top: 0.4rem; }
.beside { display: grid; gap: 0 2rem; }
@media (min-width: 64rem) { .beside { grid-template-columns: 1fr 1fr; } }
.beside > section, section { min-width: 0; }
.list .scroll { max-height: 36rem; overflow: auto; }
.list td:first-child { min-width: 10rem; }
.list td:last-child { white-space: nowrap; }
.scroll { overflow-x: auto; border: 1px solid var(--edge); border-radius: 0.5rem; margin: 0.4rem 0 0.8rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.32rem 0.7rem; text-align: left; vertical-align: top; }
th { position: sticky; top: 0; background: var(--stripe); color: var(--quiet); font-weight: 600; }
tbody tr { border-top: 1px solid var(--edge); }
.figure { text-align: right; white-space: nowrap; }
.share { background: linear-gradient(to left, var(--filled) var(--share), transparent var(--share)); }
.ours td:first-child { color: var(--ours); font-weight: 650; box-shadow: inset 3px 0 var(--ours); }
.ours { background: var(--ours-back); }
.limit { color: var(--quiet); font-style: italic; }
.pass td:last-child { color: var(--good); font-weight: 650; }
.miss td:last-child, .bad li { color: var(--bad); }
.miss td:last-child { font-weight: 650; }
figure { margin: 1.2rem 0; }
.picture { overflow-x: auto; }
.picture svg { display: block; width: 100%; min-width: 40rem; max-width: 66rem; height: auto; }
figcaption { color: var(--quiet); font-size: 0.85rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1.2rem; font-size: 0.88rem; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
@media print { .list .scroll { max-height: none; } .picture svg { min-width: 0; } }
"""
