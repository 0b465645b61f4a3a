// What happens to a server, told from one look at /health to the next. Knows no page.

/** Says in words what has changed. */
export class Watch {
  constructor() {
    this.health = null;
    this.outSince = null; // milliseconds
    this.routerPid = null; // of the last router that answered
    this.lost = null; // pipelines, by the last router's count
  }

  /** The news of a look at /health; `at` in milliseconds. */
  news(health, at) {
    const said = [];
    if (health.status !== "ok" && this.outSince === null) {
      this.outSince = at;
      said.push(`not ready: ${health.reason}`);
    }
    if (health.router_pid !== undefined) said.push(...this.#processes(health));
    if (health.status === "ok" && this.outSince !== null) {
      said.push(`ready again after ${((at - this.outSince) / 1000).toFixed(1)} s`);
      this.outSince = null;
    }
    this.health = health;
    return said;
  }

  #processes({ router_pid: pid, pipelines_lost: lost }) {
    const said = [];
    if (this.routerPid !== null && pid !== this.routerPid) {
      said.push(`another router serves: process ${pid} instead of ${this.routerPid}`);
      this.lost = null; // it counts from 0
    } else if (this.lost !== null && lost > this.lost) {
      said.push("a pipeline was lost: its sequences wait for its repair, or go on with another");
    }
    this.routerPid = pid;
    this.lost = lost;
    return said;
  }
}
