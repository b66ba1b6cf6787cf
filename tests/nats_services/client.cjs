// Prints what the services client of NATS reads: {"ping": [...], "info": [...], "stats": [...]}.
// Arguments: URL, prefix (empty: the usual one), name, id, how many services to wait for.

const { connect } = require("@nats-io/transport-node");
const { Svcm } = require("@nats-io/services");

async function main([url, prefix, name, id, count]) {
  const connection = await connect({ servers: url });
  const options = { strategy: "count", maxMessages: Number(count), maxWait: 10_000 };
  const client = new Svcm(connection).client(options, prefix || undefined);
  const found = {};
  for (const verb of ["ping", "info", "stats"]) {
    found[verb] = [];
    for await (const answer of await client[verb](name, id)) {
      found[verb].push(answer);
    }
  }
  await connection.close();
  process.stdout.write(JSON.stringify(found));
}

main(process.argv.slice(2));
