// A table of the runs that /api/runs lists, refreshed every two seconds.
const status = document.getElementById("status");
const form = document.getElementById("key");
const short = (x) => (typeof x === "number" ? Number(x.toPrecision(5)).toString() : "");

async function get(path) {
  const key = sessionStorage.getItem("key");
  const reply = await fetch(path, key ? { headers: { Authorization: "Bearer " + key } } : {});
  form.hidden = reply.status !== 401;
  if (!reply.ok) throw new Error(reply.status === 401 ? "This server needs its API key." : "The server answered " + reply.status + ".");
  return reply.json();
}

function row(run) {
  const tr = document.createElement("tr");
  const step = run.steps ? run.step + " of " + run.steps : String(run.step);
  for (const text of [run.id, run.task, run.state, step, short(run.loss), short(run.val_loss), short(run.tokens_per_s), run.updated || ""]) {
    const td = document.createElement("td");
    td.textContent = text;
    tr.append(td);
  }
  return tr;
}

async function show() {
  try {
    const info = await get("api/info");
    if (!info.pages.includes("runs")) {
      status.textContent = "This server answers the OpenAI API at /v1.";
      return;
    }
    const { runs } = await get("api/runs");
    status.textContent = runs.length + " runs in " + info.root;
    document.getElementById("runs").replaceChildren(...runs.map(row));
    document.querySelector("table").hidden = false;
  } catch (error) {
    status.textContent = error.message;
  }
  setTimeout(show, 2000);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", new FormData(form).get("key"));
  show();
});
show();
