// Work that can wait for the next frame if much was done in this one: colours of code, formulas.
//
// A long answer with hundreds of formulas opens at once, and they follow within a few frames.

const SLICE = 8; // milliseconds of a frame

let used = 0;
let frame = 0;
const waiting = [];

/** Do it now, or, after enough of its kind in this frame, in one of the next, in order. */
export function soon(work) {
  if (waiting.length || used > SLICE) waiting.push(work);
  else timed(work);
  frame ||= requestAnimationFrame(goOn);
}

function goOn() {
  used = frame = 0;
  while (waiting.length && used <= SLICE) timed(waiting.shift());
  if (waiting.length || used) frame = requestAnimationFrame(goOn);
}

function timed(work) {
  const start = performance.now();
  work();
  used += performance.now() - start;
}
