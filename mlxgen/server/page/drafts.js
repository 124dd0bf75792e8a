// Messages that are written but not sent, by conversation. They survive a reload of this tab.

const DRAFT = "mlxgen/draft/";

/** The store of this tab; null if it is disabled. */
const kept = (() => {
  try {
    return window.sessionStorage;
  } catch {
    return null;
  }
})();

export const NOTHING = { text: "", files: [], images: [] };

export function loadDraft(id) {
  try {
    return { ...NOTHING, ...JSON.parse(kept.getItem(DRAFT + id)) };
  } catch {
    return NOTHING;
  }
}

/** Keep a draft; without its attachments if there is no room for them. */
export function saveDraft(id, { text, files, images }) {
  if (!kept) return;
  const name = DRAFT + id;
  if (!text && !files.length && !images.length) {
    kept.removeItem(name);
    return;
  }
  for (const draft of [{ text, files, images }, { text, files }, { text }]) {
    try {
      kept.setItem(name, JSON.stringify(draft));
      return;
    } catch {
      // The next one is smaller.
    }
  }
}
