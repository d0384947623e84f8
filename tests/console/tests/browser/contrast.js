// Texts with less contrast to what is behind them than 4.5 to 1.
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const pixel = (...colours) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const colour of colours) {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
  }
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = (channels) => {
  const [red, green, blue] = channels
    .map((channel) => channel / 255)
    .map((share) => (share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const behind = (element) => {
  const colours = [];
  for (let at = element; at; at = at.parentElement) colours.unshift(getComputedStyle(at).backgroundColor);
  return colours;
};
const low = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  if (!own || !element.checkVisibility() || element.closest("noscript, .skip")) continue;
  const colours = behind(element);
  const [one, other] = [light(pixel(...colours)), light(pixel(...colours, getComputedStyle(element).color))].sort(
    (a, b) => b - a,
  );
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < 4.5) low.push(`${element.innerText.trim()}: ${ratio.toFixed(2)}`);
}
return low;
