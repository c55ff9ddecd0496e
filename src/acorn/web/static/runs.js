export function runsPage(main) { main.textContent = "runs"; }
