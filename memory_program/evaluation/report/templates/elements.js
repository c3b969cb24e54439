"use strict";
// Of both pages: elements are made here, and texts are only ever set as text.

const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
const at = (id) => document.getElementById(id);

// the days on which a memory held, in small print
const held = ({ valid_from: since, valid_to: until }) => {
  const isVoid = until && until <= (since ?? "0001-01-01");
  const text = isVoid ? "held on no day" : [since && `from ${since}`, until && `until ${until}`].filter(Boolean).join(" ");
  return make("small", {}, text && ` ${text}`);
};
