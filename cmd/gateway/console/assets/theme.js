// The theme that the reader has chosen, before anything is painted.
try {
  const theme = localStorage.getItem("tandem-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* the browser keeps nothing: the system's theme it is */ }
