#!/usr/bin/env bash
# A SLURM of one node on this machine, for the tests of the SLURM launcher. Debian or Ubuntu, as root. Not for production.
#   scripts/slurm_one_machine.sh          install what is missing, start what is not running, wait until the node is idle
#   scripts/slurm_one_machine.sh stop     stop the three daemons; packages and state stay
# Then: export SLURM_CONF=/var/lib/chaosgate-slurm/slurm.conf   (CHAOSGATE_SLURM chooses another folder)
set -euo pipefail

HOME_OF_SLURM=${CHAOSGATE_SLURM:-/var/lib/chaosgate-slurm}
export SLURM_CONF=$HOME_OF_SLURM/slurm.conf
NODE=$(hostname -s)

fail() { echo "slurm_one_machine: $*" >&2; exit 1; }

stop() {  # by the process ids that the daemons left here, never by name: another SLURM may run beside this one
  local daemon file pid
  for daemon in slurmd slurmctld munged; do
    file=$HOME_OF_SLURM/$daemon.pid
    [[ -s $file ]] || continue
    pid=$(cat "$file")
    if kill "$pid" 2>/dev/null; then
      for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
      echo "stopped $daemon"
    fi
    rm -f "$file"
  done
}

alive() { [[ -s $HOME_OF_SLURM/$1.pid ]] && kill -0 "$(cat "$HOME_OF_SLURM/$1.pid")" 2>/dev/null; }

install_packages() {
  command -v slurmctld slurmd sbatch munged >/dev/null && return
  command -v apt-get >/dev/null || fail "slurmctld, slurmd or munged is missing and there is no apt-get. Install slurm-wlm and munge."
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends slurm-wlm munge
}

configure() {
  mkdir -p "$HOME_OF_SLURM"/{state,spool,munge}
  chmod 755 "$HOME_OF_SLURM"
  chown munge:munge "$HOME_OF_SLURM/munge"
  local key=$HOME_OF_SLURM/munge/munge.key
  if [[ ! -s $key ]]; then
    (umask 077 && dd if=/dev/urandom of="$key" bs=1024 count=1 status=none)
    chown munge:munge "$key"
  fi
  # Without cgroups (linuxproc, task/none): containers give none. A job in 'urgent' takes the place of one in 'test', which is
  # warned 20 s before it is requeued. SLURM holds requeued jobs back for two minutes; to start one at once:
  #   scontrol update jobid=ID starttime=now
  cat >"$SLURM_CONF" <<CONF
ClusterName=chaosgate
SlurmctldHost=$NODE(127.0.0.1)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
AuthType=auth/munge
AuthInfo=socket=$HOME_OF_SLURM/munge/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$HOME_OF_SLURM/state
SlurmdSpoolDir=$HOME_OF_SLURM/spool
SlurmctldPidFile=$HOME_OF_SLURM/slurmctld.pid
SlurmdPidFile=$HOME_OF_SLURM/slurmd.pid
SlurmctldLogFile=$HOME_OF_SLURM/slurmctld.log
SlurmdLogFile=$HOME_OF_SLURM/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
JobRequeue=1
MinJobAge=600
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=$NODE NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=test Nodes=$NODE Default=YES MaxTime=60 PriorityTier=1 GraceTime=20 State=UP
PartitionName=urgent Nodes=$NODE MaxTime=60 PriorityTier=10 PreemptMode=OFF State=UP
CONF
}

start() {
  if ! alive munged; then
    # As the user munge, with everything in the folder of our own: Debian's own munged, if there is one, is left alone.
    su -s /bin/bash munge -c "munged --force --key-file='$HOME_OF_SLURM/munge/munge.key' \
      --socket='$HOME_OF_SLURM/munge/munge.socket' --pid-file='$HOME_OF_SLURM/munge/munged.pid' \
      --log-file='$HOME_OF_SLURM/munge/munged.log' --seed-file='$HOME_OF_SLURM/munge/munged.seed'"
    for _ in $(seq 50); do [[ -s $HOME_OF_SLURM/munge/munged.pid ]] && break; sleep 0.1; done
    cp "$HOME_OF_SLURM/munge/munged.pid" "$HOME_OF_SLURM/munged.pid"
  fi
  alive slurmctld || slurmctld
  alive slurmd || slurmd
  for _ in $(seq 60); do
    [[ $(sinfo --noheader --partition=test --format=%T 2>/dev/null) =~ ^(idle|mixed|allocated)$ ]] && return
    sleep 0.5
  done
  tail -n 5 "$HOME_OF_SLURM"/slurmctld.log "$HOME_OF_SLURM"/slurmd.log >&2 || true
  fail "the node did not become idle within 30 s; the last lines of the logs are above."
}

case ${1:-start} in
  stop) stop ;;
  start)
    [[ $(id -u) == 0 ]] || fail "run it as root: it installs packages and starts daemons."
    install_packages
    configure
    start
    echo "SLURM is up on $NODE: export SLURM_CONF=$SLURM_CONF"
    ;;
  *) fail "no command '$1'; start (the default) or stop." ;;
esac
