// The browser's database: opening it, and transactions as promises.
//
// Owns the names of its tables. Knows nothing of what is in them.

const NAME = "mlxgen";
const VERSION = 1;

/** What is in each table is told in store.js. */
export const TABLES = ["conversations", "nodes", "tokens", "alternatives", "aside"];

let opened = null;

/** The database, opened once; null if this browser has none. */
export function openDatabase() {
  opened ??= new Promise((resolve) => {
    let asked;
    try {
      asked = window.indexedDB.open(NAME, VERSION);
    } catch {
      resolve(null); // it is disabled
      return;
    }
    asked.onupgradeneeded = () => TABLES.forEach((table) => asked.result.createObjectStore(table));
    asked.onerror = (event) => {
      event.preventDefault();
      resolve(null);
    };
    asked.onsuccess = () => {
      const database = asked.result;
      const forget = () => (opened = null); // the next transaction opens it again
      database.onclose = forget;
      database.onversionchange = () => {
        database.close();
        forget();
      };
      resolve(database);
    };
  });
  return opened;
}

/** What a request finds. */
export const found = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Do `work(tables)` in one transaction: all of it happens, or it throws and nothing did.
 *  Resolves to what `work` returned, after all is written. */
export async function transact(mode, work) {
  const database = await openDatabase();
  if (!database) throw new Error("This browser has no database.");
  const transaction = database.transaction(TABLES, mode);
  const tables = Object.fromEntries(TABLES.map((table) => [table, transaction.objectStore(table)]));
  const ended = new Promise((resolve, reject) => {
    transaction.oncomplete = resolve;
    transaction.onabort = () => reject(transaction.error);
  });
  ended.catch(() => {}); // if the work itself fails, that is the reason
  let result;
  try {
    result = await work(tables);
  } catch (error) {
    try {
      transaction.abort();
    } catch {
      // A request that failed has aborted it.
    }
    throw transaction.error ?? error;
  }
  await ended;
  return result;
}

export const isFull = (error) => error?.name === "QuotaExceededError";

/** The keys that begin with these parts. */
export const under = (...parts) => IDBKeyRange.bound(parts, [...parts, []]);
