export function viewPage(main) { main.textContent = "view"; }
