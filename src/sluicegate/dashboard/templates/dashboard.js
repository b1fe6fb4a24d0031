// The live part of the page. The server renders it; each event brings it whole. The answer ends after one event, so that no
// page holds a worker, and the browser asks again by itself.
"use strict";
const live = document.getElementById("live");
const source = new EventSource("events");
source.onmessage = (event) => {
  const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
  live.innerHTML = event.data; // escaped by the server's templates
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
};
source.onerror = () => {
  // Closed for good: the session has ended, and the page says so. A server that restarts is asked again instead.
  if (source.readyState === EventSource.CLOSED) location.reload();
};
