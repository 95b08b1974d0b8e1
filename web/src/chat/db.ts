// Conversations in IndexedDB: `heads` for the list, `conversations` for their contents.
import type { Conversation } from './tree';

export interface Head {
  id: string;
  title: string;
  updated: number;
}

const done = <T>(r: IDBRequest<T>) =>
  new Promise<T>((resolve, reject) => {
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  });

let opening: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opening ??= new Promise((resolve, reject) => {
    const r = indexedDB.open('hearth', 1);
    r.onupgradeneeded = () => {
      r.result.createObjectStore('heads', { keyPath: 'id' });
      r.result.createObjectStore('conversations', { keyPath: 'id' });
    };
    r.onsuccess = () => resolve(r.result);
    r.onerror = () => reject(r.error);
  });
  return opening;
}

export async function heads(): Promise<Head[]> {
  const all: Head[] = await done((await open()).transaction('heads').objectStore('heads').getAll());
  return all.sort((a, b) => b.updated - a.updated);
}

export async function load(id: string): Promise<Conversation | undefined> {
  return done((await open()).transaction('conversations').objectStore('conversations').get(id));
}

export async function save(c: Conversation): Promise<void> {
  const t = (await open()).transaction(['heads', 'conversations'], 'readwrite');
  t.objectStore('heads').put({ id: c.id, title: c.title, updated: c.updated });
  await done(t.objectStore('conversations').put(c));
}

export async function remove(id: string): Promise<void> {
  const t = (await open()).transaction(['heads', 'conversations'], 'readwrite');
  t.objectStore('heads').delete(id);
  await done(t.objectStore('conversations').delete(id));
}
