// Runs before each script, in its context: returns a function that takes the message and returns one that tells what
// the script made of it. What a script changes of JavaScript itself concerns nobody but itself.
(() => {
  "use strict";
  const { parse, stringify } = JSON;
  const { construct, has } = Reflect;
  const { isArray } = Array;
  const { keys, prototype } = Object;
  const RealDate = Date;

  // What a promise swallows is seen by nobody: there are none, and no code that was not checked for async functions.
  function leaveNoPromises() {
    const RealFunction = Function;
    const refuse = () => { throw new TypeError("code from strings is not available"); };
    const NoFunction = new Proxy(RealFunction, { __proto__: null, apply: refuse, construct: refuse });
    const kinds = [function* () {}, async function () {}, async function* () {}];
    for (const kind of kinds) delete Object.getPrototypeOf(kind).constructor;
    RealFunction.prototype.constructor = globalThis.Function = NoFunction;
    delete globalThis.eval;
    delete globalThis.Promise;
  }

  function fixTime(now) {
    RealDate.now = () => now;
    const FixedDate = new Proxy(RealDate, {
      construct: (target, parts, made) => construct(target, parts.length ? parts : [now], made),
      apply: () => new RealDate(now).toString(),
    });
    RealDate.prototype.constructor = FixedDate;
    globalThis.Date = FixedDate;
    delete globalThis.__date_clock;
  }

  function fixRandomness(seed) {  // mulberry32
    Math.random = () => {
      seed = (seed + 0x6d2b79f5) | 0;
      let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
      mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  function withoutCase(headers) {
    const known = (name) =>
      typeof name === "string" && prototype.hasOwnProperty.call(headers, name.toLowerCase()) ? name.toLowerCase() : name;
    return new Proxy(headers, {
      get: (_, name) => headers[known(name)],
      has: (_, name) => has(headers, known(name)),
    });
  }

  function bodyOf(value, most) {
    if (value === undefined) return null;
    const text = typeof value === "string" ? value : stringify(value);
    if (text === undefined) throw new TypeError("$outmessage must be a string or what JSON can hold");
    if (text.length > most) throw new RangeError("$outmessage is larger than 1 MiB");
    return text;
  }

  function textOf(value, what) {
    if (typeof value === "number" || typeof value === "boolean") return `${value}`;
    if (isArray(value)) return value.map((one) => textOf(one, what)).join(", ");
    if (typeof value !== "string") throw new TypeError(`${what} must be a string`);
    return value;
  }

  function headersOf(value) {
    if (value === undefined || value === null) return [];
    if (typeof value !== "object" || isArray(value)) throw new TypeError("$outheader must be an object");
    const given = keys(value).filter((name) => value[name] !== undefined && value[name] !== null);
    return given.map((name) => [name, textOf(value[name], `$outheader["${name}"]`)]);
  }

  // Of a call alone: what a delivery's script says here concerns nobody, so nothing throws.
  function statusOf(value) {
    if (value === undefined) return "200";
    return typeof value === "number" || typeof value === "string" ? `${value}` : "";
  }

  return (input) => {
    const { text, isJson, headers, now, seed, most } = parse(input);
    leaveNoPromises();
    fixTime(now);
    fixRandomness(seed);
    globalThis.$inmessage = isJson ? parse(text) : text;
    globalThis.$inheader = withoutCase(headers);
    return () => {
      const body = bodyOf(typeof $outmessage === "undefined" ? undefined : $outmessage, most);
      const outheader = typeof $outheader === "undefined" ? undefined : $outheader;
      const param = typeof $param === "undefined" || $param === null ? "" : textOf($param, "$param");
      const status = statusOf(typeof $statuscode === "undefined" ? undefined : $statuscode);
      return stringify([body, headersOf(outheader), param, status]);
    };
  };
})()
