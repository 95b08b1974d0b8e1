// The kernels for mixtures of experts that all instruction sets share (core/moe_args.h).
#pragma once

#include "core/kernels.h"

namespace hearth::inline cpu {

void route(Stream&, const RouteArgs&);
void route_bwd(Stream&, const RouteBwdArgs&);
void expert_rows(Stream&, const ExpertRowsArgs&);
void grouped_gemm(Stream&, const GroupedGemmArgs&);
void grouped_gemm_weights(Stream&, const GroupedGemmWeightsArgs&);
void router_stats(Stream&, const RouterStatsArgs&);
void balance_bias(Stream&, const BalanceBiasArgs&);

}  // namespace hearth::inline cpu
