const policy = document.getElementById("policy"), job = document.getElementById("job"), found = document.getElementById("found");
function show() {
  const rows = decisions[policy.value].filter((row) => job.value === "" || row[1].split(".")[0] === job.value).slice(0, 400);
  found.replaceChildren(...rows.map((row) => {
    const line = document.createElement("tr");
    for (const text of row) { const cell = document.createElement("td"); cell.textContent = text; line.append(cell); }
    return line;
  }));
}
policy.addEventListener("change", show); job.addEventListener("input", show); show();
