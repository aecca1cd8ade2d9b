"""ctypes declarations of dreamddp.h, written by tools/python_binding.py; do not edit."""
from ctypes import CFUNCTYPE, POINTER, Structure, Union, c_char, c_char_p, c_double, c_float, c_int, c_int32, \
        c_int64, c_long, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

DDP_VERSION_MAJOR = 0
DDP_VERSION_MINOR = 3
DDP_VERSION_PATCH = 0
DDP_VERSION_STRING = "0.3.0"
DDP_ERROR_TEXT = 400
DDP_NO_MOMENTUM = -1.0
DDP_OVERWRITE = -1.0
DDP_TOUR_EXACT = 16
DDP_RING_EXACT = 12
DDP_LOSS_EXACT = -1.0
DDP_PACK_HEAD = 24
DDP_QUANTISE_BLOCK = 64
DDP_SPARSE_CHUNK = 4096
DDP_OP_INPUTS = 4
DDP_OP_PARAMS = 4
DDP_OP_BUFFERS = 2
DDP_OP_ARGS = 8
DDP_MLP_HIDDEN = 8
DDP_IMAGE_CHANNELS = 3
DDP_SAFETENSORS_DIMS = 8
DDP_OK = 0
DDP_ARG = 1
DDP_USAGE = 2
DDP_MEMORY = 3
DDP_IO = 4
DDP_FORMAT = 5
DDP_NET = 6
DDP_PEER_LOST = 7
DDP_TIMEOUT = 8
DDP_MISMATCH = 9
DDP_UNSUPPORTED = 10
DDP_ABORTED = 11
DDP_NUMERIC = 12
DDP_FAILED = 13
DDP_STATUS_COUNT = 14
DDP_LOG_DEFAULT = 0
DDP_LOG_OFF = 1
DDP_LOG_ERROR = 2
DDP_LOG_WARN = 3
DDP_LOG_INFO = 4
DDP_LOG_DEBUG = 5
DDP_SAME = 32
DDP_PROGRAM_STATES = 8
DDP_OSP_WALK = 0
DDP_OSP_STOP = 1
DDP_OSP_DENSITY = 2
DDP_OSP_KNAPSACK = 3
DDP_SOLVER_DEFAULT = 0
DDP_SOLVER_OPTIMAL = 1
DDP_SOLVER_DFS = 2
DDP_SOLVER_ENP = 3
DDP_SOLVER_BRUTE = 4
DDP_SOLVER_SCATTER = 5
DDP_COST_DEFAULT = 0
DDP_COST_TIMELINE = 1
DDP_COST_SUM = 2
DDP_COST_WINDOW = 3
DDP_FILL_NONE = 0
DDP_FILL_EXACT = 1
DDP_FILL_EQ12 = 2
DDP_STRATEGY_DEFAULT = 0
DDP_SSGD = 1
DDP_WFBP = 2
DDP_LOCALSGD = 3
DDP_ENP = 4
DDP_DREAMDDP = 5
DDP_MGWFBP = 6
DDP_ASCWFBP = 7
DDP_BYTESCHEDULER = 8
DDP_USBYTE = 9
DDP_DEFT = 10
DDP_BSP = 11
DDP_ASP = 12
DDP_SSP = 13
DDP_R2SP = 14
DDP_OSP = 15
DDP_DILOCO = 16
DDP_SPARSELOCO = 17
DDP_AUTO = 18
DDP_OVERLAP_DEFAULT = 0
DDP_OVERLAP_NONE = 1
DDP_OVERLAP_STREAM = 2
DDP_OVERLAP_EAGER = 3
DDP_TRANSPORT_DEFAULT = 0
DDP_THREADS = 1
DDP_TCP = 2
DDP_MPI = 3
DDP_SOCKETS = 4
DDP_SERVERS_COLOCATED = -1
DDP_DEFER_NONE = -1
DDP_LGP_DEFAULT = 0
DDP_LGP_ON = 1
DDP_LGP_OFF = 2
DDP_LGP_EMA = 3
DDP_CORRECT_DEFAULT = 0
DDP_CORRECT_DEFERRED = 1
DDP_CORRECT_EAGER = 2
DDP_WIRE_DEFAULT = 0
DDP_WIRE_F32 = 1
DDP_WIRE_BF16 = 2
DDP_WIRE_INT8 = 3
DDP_WIRE_INT4 = 4
DDP_WIRE_E3M0 = 5
DDP_WIRE_TOPK = 6
DDP_ALGORITHM_DEFAULT = 0
DDP_FULL = 1
DDP_DIRECT = 2
DDP_RING = 3
DDP_KERNELS_DEFAULT = 0
DDP_KERNELS_BASE = 1
DDP_KERNELS_AVX2 = 2
DDP_KERNELS_AVX512 = 3
DDP_F32 = 0
DDP_I32 = 1
DDP_PARAMS = 0
DDP_BUFFERS = 1
DDP_OWN_PARAMS = 2
DDP_LR_CONSTANT = 0
DDP_LR_COSINE = 1
DDP_LR_STEP = 2
DDP_ALL_REDUCE = 0
DDP_BROADCAST = 1
DDP_ALL_GATHER = 2
DDP_REDUCE_SCATTER = 3
DDP_SEND = 4
DDP_PUSH = 5
DDP_ANSWER = 6
DDP_RECEIVE = 8
DDP_SERVE = 9
DDP_PULL = 10
DDP_ANY = -1
DDP_AS_FLOAT = 0
DDP_AS_BFLOAT = 1
DDP_AS_INT8 = 2
DDP_AS_INT4 = 3
DDP_AS_E3M0 = 4
DDP_NO_LAYER = -1
DDP_ALL_LAYERS = -2
DDP_AVERAGES_GRADIENTS = 0
DDP_AVERAGES_PARAMETERS = 1
DDP_AVERAGES_CHANGES = 2
DDP_NEEDS_FORWARD = 1
DDP_NEEDS_SERVERS = 2
DDP_NEEDS_TWO_LINKS = 4
DDP_CHOOSES_LINKS = 8
DDP_OUT_OF_STEP = 16
DDP_WITH_CLIP = 256
DDP_WITH_BF16 = 512
DDP_WITH_INT8 = 1024
DDP_WITH_GROUPS = 2048
DDP_WITH_SITES = 4096
DDP_WITH_ELASTIC = 8192
DDP_WITH_DEVICE = 16384
DDP_WITH_FIRST = 262144
DDP_WITH_ALL = 294656
DDP_WITH_INT4 = 32768
DDP_WITH_TOPK = 65536
DDP_WITH_PARTS = 131072
DDP_ARRIVAL_UNKNOWN = -128
DDP_SERVE_SAVE = -1
DDP_LATE_MIX = 0
DDP_LATE_OWN = 1
DDP_LATE_COMPENSATE = 2
DDP_KEPT_DRAINED = 2
DDP_KEPT_HERE = 4
DDP_KEPT_NOWHERE = 8
DDP_KEPT_TOLD = 16
DDP_KEPT_LATER = 32
DDP_NOTE_SLOW = 0
DDP_NOTE_EVEN = 1
DDP_NOTE_REPLAN = 2
DDP_NOTE_LOST = 3
DDP_NOTE_JOINED = 4
DDP_SPAN_FORWARD = 0
DDP_SPAN_BACKWARD = 1
DDP_SPAN_UPDATE = 2
DDP_SPAN_WAIT = 3
DDP_SPAN_COMM = 4
DDP_SPAN_FILL = 5
DDP_SPAN_PEER_WAIT = 6
DDP_SUM = 0
DDP_MEAN = 1
DDP_MAX = 2
DDP_MIN = 3
DDP_SCHEME_SSGD = 0
DDP_SCHEME_WFBP = 1
DDP_SCHEME_MGWFBP = 2
DDP_SCHEME_ASCWFBP = 3
DDP_SCHEME_BYTESCHEDULER = 4
DDP_SCHEME_USBYTE = 5
DDP_SCHEME_DEFT = 6
DDP_INTERVAL_BACKWARD = 0
DDP_INTERVAL_FORWARD = 1
DDP_INTERVAL_LINK = 2
DDP_KNAPSACK_DEFAULT = 0
DDP_KNAPSACK_EXACT = 1
DDP_KNAPSACK_GREEDY = 2
DDP_SELECT_DEFAULT = 0
DDP_SELECT_RELEASE = 1
DDP_SELECT_PAPER = 2
DDP_SERVING_TOGETHER = 0
DDP_SERVING_EACH = 1
DDP_SERVING_IN_TURN = 2
DDP_PLACE_DEFAULT = 0
DDP_PLACE_ANNEAL = 1
DDP_PLACE_GENETIC = 2
DDP_PLACE_GENETIC_CODE = 3
DDP_PLACE_KL = 4
DDP_PLACE_RANDOM = 5
DDP_PLACE_EXACT = 6
DDP_FENCE_DEFAULT = 0
DDP_FENCE_CUT = 1
DDP_FENCE_EQUAL_OPS = 2
DDP_FENCE_EQUAL_FLOPS = 3
DDP_RESULT_EXACT = 0
DDP_RESULT_AVERAGED = 1
DDP_RESULT_LATE = 2
DDP_RESULT_OUTER = 3
DDP_PIPELINE_DEFAULT = 0
DDP_PIPELINE_GPIPE = 1
DDP_PIPELINE_1F1B = 2
DDP_PIPELINE_ZB = 3
DDP_TASK_FORWARD = 0
DDP_TASK_BACKWARD = 1
DDP_TASK_INPUT_GRADIENT = 2
DDP_TASK_WEIGHT_GRADIENT = 3
DDP_TASK_SEND = 4
DDP_TASK_RECEIVE = 5
DDP_PACK_DEFAULT = 0
DDP_PACK_I64 = 1
DDP_PACK_I32 = 2
DDP_PACK_DELTA = 3
DDP_PACK_DENSE = 4
DDP_PACK_INT8 = 5
DDP_PACK_INT4 = 6
DDP_PACK_E3M0 = 7
DDP_INIT_ZERO = 0
DDP_INIT_ONE = 1
DDP_INIT_NORMAL = 2
DDP_INIT_UNIFORM = 3
DDP_EDGE_F32 = 0
DDP_EDGE_BF16 = 1
DDP_EDGE_INT8 = 2
DDP_EDGE_TOPK = 3
DDP_EDGE_ADATOPK = 4
DDP_EDGE_BOTTLENECK = 5
DDP_EDGE_AQ = 6
DDP_ST_F32 = 0
DDP_ST_F64 = 1
DDP_ST_F16 = 2
DDP_ST_BF16 = 3
DDP_ST_I64 = 4
DDP_ST_I32 = 5
DDP_ST_I16 = 6
DDP_ST_I8 = 7
DDP_ST_U8 = 8
DDP_ST_BOOL = 9


class ddp_error(Structure):
    pass


class ddp_logger(Structure):
    pass


class ddp_allocator(Structure):
    pass


class ddp_step_info(Structure):
    pass


class ddp_program_state(Structure):
    pass


class ddp_config(Structure):
    pass


class ddp_setting(Structure):
    pass


class ddp_block(Structure):
    pass


class ddp_matrix(Structure):
    pass


class ddp_layer(Structure):
    pass


class ddp_update(Structure):
    pass


class ddp_optimizer(Structure):
    pass


class ddp_lr_schedule(Structure):
    pass


class ddp_piece(Structure):
    pass


class ddp_received(Structure):
    pass


class ddp_owner(Structure):
    pass


class ddp_maker(Structure):
    pass


class ddp_message(Structure):
    pass


class ddp_transfer(Structure):
    pass


class ddp_chosen(Structure):
    pass


class ddp_blob(Structure):
    pass


class ddp_strategy_ops(Structure):
    pass


class ddp_link(Structure):
    pass


class ddp_linkfit(Structure):
    pass


class ddp_profile(Structure):
    pass


class ddp_oplist_entry(Structure):
    pass


class ddp_oplist(Structure):
    pass


class ddp_stats(Structure):
    pass


class ddp_note(Structure):
    pass


class ddp_span(Structure):
    pass


class ddp_link_stats(Structure):
    pass


class ddp_pair(Structure):
    pass


class ddp_probe_result(Structure):
    pass


class ddp_sites(Structure):
    pass


class ddp_ring_choice(Structure):
    pass


class ddp_network(Structure):
    pass


class ddp_loss_point(Structure):
    pass


class ddp_loss_table(Structure):
    pass


class ddp_plan_options(Structure):
    pass


class ddp_plan(Structure):
    pass


class ddp_timeline_options(Structure):
    pass


class ddp_interval(Structure):
    pass


class ddp_timeline(Structure):
    pass


class ddp_knapsack_problem(Structure):
    pass


class ddp_delayed_options(Structure):
    pass


class ddp_delayed_send(Structure):
    pass


class ddp_delayed_step(Structure):
    pass


class ddp_delayed_plan(Structure):
    pass


class ddp_preserver(Structure):
    pass


class ddp_preserved(Structure):
    pass


class ddp_served(Structure):
    pass


class ddp_place_options(Structure):
    pass


class ddp_placement(Structure):
    pass


class ddp_workload_options(Structure):
    pass


class ddp_workload_message(Structure):
    pass


class ddp_workload(Structure):
    pass


class ddp_fence_options(Structure):
    pass


class ddp_fence_segment(Structure):
    pass


class ddp_fence_plan(Structure):
    pass


class ddp_candidate(Structure):
    pass


class ddp_prediction(Structure):
    pass


class ddp_loss_fit(Structure):
    pass


class ddp_choice_options(Structure):
    pass


class ddp_choice_row(Structure):
    pass


class ddp_choice(Structure):
    pass


class ddp_task(Structure):
    pass


class ddp_pipeline_shape(Structure):
    pass


class ddp_stage_cost(Structure):
    pass


class ddp_boundary(Structure):
    pass


class ddp_pipeline_costs(Structure):
    pass


class ddp_pipeline_slot(Structure):
    pass


class ddp_pipeline_times(Structure):
    pass


class ddp_packed(Structure):
    pass


class ddp_adatopk_options(Structure):
    pass


class ddp_link_compression(Structure):
    pass


class ddp_rng(Structure):
    pass


class ddp_shape(Structure):
    pass


class ddp_param(Structure):
    pass


class ddp_op_spec(Structure):
    pass


class ddp_op_call(Structure):
    pass


class ddp_op(Structure):
    pass


class ddp_op_pair(Structure):
    pass


class ddp_node_info(Structure):
    pass


class ddp_edge_wire(Structure):
    pass


class ddp_pipe_config(Structure):
    pass


class ddp_pipe_stats(Structure):
    pass


class ddp_pipe_layout(Structure):
    pass


class ddp_simulation(Structure):
    pass


class ddp_simulated(Structure):
    pass


class ddp_gpt2_config(Structure):
    pass


class ddp_llama2_config(Structure):
    pass


class ddp_mlp_config(Structure):
    pass


class ddp_resnet_config(Structure):
    pass


class ddp_vgg_config(Structure):
    pass


class ddp_token_range(Structure):
    pass


class ddp_images(Structure):
    pass


class ddp_image_range(Structure):
    pass


class ddp_image_norm(Structure):
    pass


class ddp_safetensor(Structure):
    pass


class ddp_report_step(Structure):
    pass


class ddp_report_worker(Structure):
    pass


class ddp_report_layer(Structure):
    pass


class ddp_report_note(Structure):
    pass


class ddp_report_run(Structure):
    pass


class ddp_report_data(Structure):
    pass


class ddp_report_pipeline(Structure):
    pass


class ddp_backend_peers(Structure):
    pass


class ddp_backend(Structure):
    pass

ddp_error._fields_ = [
    ("code", c_int), ("msg", c_char * 400)]
ddp_logger._fields_ = [
    ("fn", CFUNCTYPE(None, c_void_p, c_int, c_char_p)), ("user", c_void_p), ("level", c_int)]
ddp_allocator._fields_ = [
    ("alloc", CFUNCTYPE(c_void_p, c_void_p, c_size_t)),
    ("free", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)), ("user", c_void_p)]
ddp_step_info._fields_ = [
    ("loss", c_double), ("samples", c_long), ("epoch", c_double), ("lr", c_float)]
ddp_program_state._fields_ = [
    ("name", c_char_p),
    ("save", CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p), POINTER(c_size_t), POINTER(ddp_error))),
    ("load", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(ddp_error))),
    ("release", CFUNCTYPE(None, c_void_p, c_void_p)), ("user", c_void_p), ("early", c_int)]


class ddp_config_average(Structure):
    _fields_ = [("first", c_int), ("state", c_int), ("state_period", c_int * 2), ("split_params", c_int)]


class ddp_config_plan(Structure):
    _fields_ = [("paper", c_int), ("solver", c_int), ("cost", c_int), ("fill", c_int)]


class ddp_config_choice(Structure):
    _fields_ = [("steps", c_double), ("loss_budget", c_double), ("loss_table", c_char_p)]


class ddp_config_gradient(Structure):
    _fields_ = [("bucket_bytes", c_size_t), ("partition_bytes", c_size_t), ("credit", c_double)]


class ddp_config_deft(Structure):
    _fields_ = [("merge_sum", c_int), ("no_barrier", c_int), ("update_frequency", c_double),
    ("preserve", c_double)]


class ddp_config_server(Structure):
    _fields_ = [("count", c_int), ("staleness", c_int), ("push_scale", c_float)]


class ddp_config_osp(Structure):
    _fields_ = [("defer", c_double), ("lgp", c_int), ("correct", c_int), ("split", c_int)]


class ddp_config_outer(Structure):
    _fields_ = [("lr", c_double), ("momentum", c_double), ("overlap", c_int), ("mixture", c_double),
    ("fragments", c_int), ("landing", c_int), ("compensation", c_double)]


class ddp_config_timeout(Structure):
    _fields_ = [("connect_s", c_double), ("join_s", c_double), ("peer_s", c_double), ("op_s", c_double)]


class ddp_config_elastic(Structure):
    _fields_ = [("min_world", c_int), ("max_world", c_int), ("join", c_int), ("bytes", c_size_t)]


class ddp_config_security(Structure):
    _fields_ = [("insecure", c_int), ("psk", c_char_p), ("ca", c_char_p), ("cert", c_char_p), ("key", c_char_p),
    ("no_checksum", c_int)]


class ddp_config_network(Structure):
    _fields_ = [("socket_ifname", c_char_p), ("net_script", c_char_p), ("net2", c_char_p), ("addr2", c_char_p)]


class ddp_config_device(Structure):
    _fields_ = [("nccl", c_int), ("cuda_stream", c_void_p)]


class ddp_config_debug(Structure):
    _fields_ = [("dump_path", c_char_p), ("trace_spans", c_int), ("check_writes", c_int),
    ("no_finite_check", c_int), ("overwrite", c_int)]
ddp_config._fields_ = [
    ("strategy", c_int), ("own_strategy", POINTER(ddp_strategy_ops)), ("period", c_int),
    ("transport", c_int), ("rank", c_int), ("world", c_int), ("sockets", POINTER(c_int)),
    ("addr", c_char_p), ("run_id", c_char_p), ("net", c_char_p), ("wire", c_int),
    ("topk_fraction", c_double), ("site", c_int), ("threads", c_int), ("kernels", c_int),
    ("seed", c_uint64), ("micro_batches", c_int), ("clip_norm", c_float), ("algorithm", c_int),
    ("deterministic", c_int), ("profile_steps", c_int), ("profile_path", c_char_p),
    ("plan_path", c_char_p), ("no_env", c_int), ("cancel", POINTER(c_int)),
    ("backend", POINTER(ddp_backend)), ("allocator", ddp_allocator), ("logger", ddp_logger),
    ("average", ddp_config_average), ("plan", ddp_config_plan), ("choice", ddp_config_choice),
    ("gradient", ddp_config_gradient), ("deft", ddp_config_deft), ("server", ddp_config_server),
    ("osp", ddp_config_osp), ("outer", ddp_config_outer), ("timeout", ddp_config_timeout),
    ("elastic", ddp_config_elastic), ("security", ddp_config_security),
    ("network", ddp_config_network), ("device", ddp_config_device), ("debug", ddp_config_debug)]
ddp_setting._fields_ = [
    ("field", c_char_p), ("member", c_char_p), ("variable", c_char_p), ("preset", c_char_p),
    ("help", c_char_p), ("same", c_int), ("chapter", c_char * 16), ("flag", c_char * 40),
    ("values", c_char * 256), ("value", c_char * 256)]
ddp_block._fields_ = [
    ("params", c_void_p), ("grads", c_void_p), ("count", c_size_t), ("kind", c_int)]
ddp_matrix._fields_ = [
    ("params", c_void_p), ("rows", c_size_t), ("columns", c_size_t)]
ddp_layer._fields_ = [
    ("name", c_char_p), ("params", c_void_p), ("grads", c_void_p), ("count", c_size_t),
    ("blocks", POINTER(ddp_block)), ("block_count", c_int), ("flops", c_double), ("group", c_int),
    ("matrices", POINTER(ddp_matrix)), ("matrix_count", c_int)]
ddp_update._fields_ = [
    ("layer", c_int), ("params", c_void_p), ("grads", c_void_p), ("state", c_void_p),
    ("count", c_size_t), ("step", c_long), ("lr", c_float), ("stream", c_void_p), ("rows", c_size_t),
    ("columns", c_size_t), ("desk", c_void_p)]
ddp_optimizer._fields_ = [
    ("name", c_char_p), ("state_per_param", c_int),
    ("update", CFUNCTYPE(None, POINTER(ddp_optimizer), POINTER(ddp_update))), ("lr", c_float),
    ("hyper", c_float * 6), ("user", c_void_p), ("matrix_state", c_int)]
ddp_lr_schedule._fields_ = [
    ("kind", c_int), ("base", c_double), ("warmup", c_long), ("total", c_long),
    ("min_ratio", c_double), ("step_size", c_long), ("gamma", c_double)]


class ddp_piece_0(Union):
    _fields_ = [("data", c_void_p), ("bytes", c_void_p)]
ddp_piece._anonymous_ = ['_0']
ddp_piece._fields_ = [
    ("_0", ddp_piece_0), ("count", c_size_t)]
ddp_received._fields_ = [
    ("verb", c_int), ("peer", c_int), ("layer", c_int), ("count", c_size_t)]
ddp_owner._fields_ = [
    ("rule", CFUNCTYPE(None, c_void_p, c_size_t, c_void_p, c_size_t)), ("user", c_void_p),
    ("again", CFUNCTYPE(None, c_void_p))]
ddp_maker._fields_ = [
    ("make", CFUNCTYPE(c_int, c_void_p, POINTER(ddp_error))), ("user", c_void_p)]


class ddp_message_0(Union):
    _fields_ = [("received", POINTER(ddp_received)), ("owner", POINTER(ddp_owner)), ("maker", POINTER(ddp_maker))]
ddp_message._anonymous_ = ['_0']
ddp_message._fields_ = [
    ("verb", c_int), ("from", POINTER(ddp_piece)), ("from_count", c_int), ("to", POINTER(ddp_piece)),
    ("to_count", c_int), ("add", c_int), ("bytes", c_int), ("scale", c_float), ("mean", c_int),
    ("group", c_int), ("peer", c_int), ("layer", c_int), ("step", c_long), ("priority", c_int),
    ("link", c_int), ("after", c_long), ("coding", c_int), ("residual", c_void_p),
    ("divergence", POINTER(c_double)), ("_0", ddp_message_0), ("ragged", c_int), ("overlap", c_int),
    ("filler", c_int), ("round", c_char), ("counts_as", c_char), ("here", c_char), ("levels", c_char)]
ddp_transfer._fields_ = [
    ("step", c_int), ("first", c_int), ("last", c_int), ("behind", c_int)]
ddp_chosen._fields_ = [
    ("strategy", c_int), ("overlap", c_int), ("wire", c_int), ("period", c_int), ("name", c_char * 96),
    ("runner_up", c_char * 96), ("seconds", c_double), ("runner_up_s", c_double), ("ssgd_s", c_double),
    ("step_s", c_double), ("penalty", c_double), ("reason", c_char * 400)]
ddp_blob._fields_ = [
    ("bytes", POINTER(c_ubyte)), ("size", c_size_t)]
ddp_strategy_ops._fields_ = [
    ("name", c_char_p), ("averages", c_int), ("traits", c_uint), ("self_bytes", c_size_t),
    ("start", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("forward_begin", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)),
    ("backward_end", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)),
    ("step_end", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)),
    ("arrived", CFUNCTYPE(c_int, c_void_p, c_void_p, c_long)),
    ("wait", CFUNCTYPE(c_int, c_void_p, c_void_p)), ("drain", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("sync_all", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("restart", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("members_changed", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("serve", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("tell_servers", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)),
    ("settle", CFUNCTYPE(c_int, POINTER(ddp_strategy_ops), POINTER(ddp_config), POINTER(ddp_error))),
    ("failed", CFUNCTYPE(None, c_void_p, c_void_p)), ("close", CFUNCTYPE(None, c_void_p, c_void_p)),
    ("plan_make", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(ddp_profile), c_int, POINTER(ddp_blob))),
    ("plan_whole", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(ddp_profile), POINTER(ddp_plan))),
    ("plan_adopt", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(ddp_plan), POINTER(ddp_blob))),
    ("plan_take", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(ddp_blob), POINTER(ddp_profile))),
    ("plan_fits", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(ddp_blob))),
    ("plan_view", CFUNCTYPE(POINTER(ddp_plan), c_void_p)),
    ("plan_stale", CFUNCTYPE(c_int, c_void_p, c_void_p)),
    ("plan_exposed", CFUNCTYPE(c_double, c_void_p)),
    ("transfers", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_int), POINTER(ddp_transfer), c_int)),
    ("plan_adapt", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(c_int), POINTER(ddp_blob), POINTER(c_int))),
    ("due", CFUNCTYPE(c_int, c_void_p, c_void_p, c_int)),
    ("choose", CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(ddp_profile), POINTER(ddp_chosen)))]
ddp_link._fields_ = [
    ("alpha_s", c_double), ("beta_s", c_double)]
ddp_linkfit._fields_ = [
    ("link", ddp_link), ("half_life", c_double), ("n", c_double), ("x", c_double), ("y", c_double),
    ("xx", c_double), ("xy", c_double)]
ddp_profile._fields_ = [
    ("layers", c_int), ("name", POINTER(c_char_p)), ("params", POINTER(c_double)),
    ("forward_s", POINTER(c_double)), ("backward_s", POINTER(c_double)), ("comm_s", POINTER(c_double)),
    ("alpha_s", c_double), ("gap_s", c_double), ("between_s", c_double)]
ddp_oplist_entry._fields_ = [
    ("name", c_char_p), ("args", POINTER(c_int)), ("arg_count", c_int), ("flops", c_double),
    ("output_bytes", c_double), ("param_bytes", c_double), ("module", c_int)]
ddp_oplist._fields_ = [
    ("count", c_int), ("op", POINTER(ddp_oplist_entry))]
ddp_stats._fields_ = [
    ("strategy", c_char_p), ("steps", c_long), ("counted_steps", c_long), ("step_s", c_double),
    ("wait_s", c_double), ("comm_s", c_double), ("exposed_s", c_double), ("hidden_pct", c_double),
    ("peer_wait_s", c_double), ("bytes_sent", c_int64), ("bytes_as", c_int64 * 7),
    ("comm_cpu_s", c_double), ("predicted_step_s", c_double), ("predicted_hidden_pct", c_double),
    ("divergence", c_double), ("link", ddp_link), ("replans", c_long), ("staleness", c_double),
    ("staleness_most", c_long), ("deferred_pct", c_double), ("updates", c_long),
    ("compute_s", c_double), ("median_compute_s", c_double), ("slowest_rank", c_int),
    ("slow_ratio", c_double), ("optimizer_bytes", c_size_t), ("not_finite", c_long),
    ("counted_from", c_long), ("counted_periods", c_long), ("period", c_int),
    ("wait_total_s", c_double), ("landing_moves", c_long), ("corrected_step_s", c_double),
    ("chosen", POINTER(ddp_chosen))]
ddp_note._fields_ = [
    ("kind", c_int), ("step", c_long), ("time_s", c_double), ("rank", c_int), ("workers", c_int),
    ("before", c_double), ("now", c_double)]
ddp_span._fields_ = [
    ("begin_s", c_double), ("end_s", c_double), ("step", c_long), ("layer", c_int), ("kind", c_int),
    ("bytes", c_int64)]
ddp_link_stats._fields_ = [
    ("bytes_sent", c_int64), ("operations", c_int64), ("busy_s", c_double), ("link", ddp_link),
    ("gap_s", c_double), ("mu", c_double), ("algorithm", c_char_p)]
ddp_pair._fields_ = [
    ("ping_s", c_double), ("ping_median_s", c_double), ("link", ddp_link), ("rate", c_double),
    ("offset_s", c_double), ("relayed", c_int)]
ddp_probe_result._fields_ = [
    ("world", c_int), ("pair", POINTER(ddp_pair)), ("host", POINTER(ddp_link)),
    ("name", POINTER(c_char * 64)), ("seconds", c_double)]
ddp_sites._fields_ = [
    ("inside", c_int), ("gather", c_int), ("across", c_int), ("equal", c_int), ("sites", c_int),
    ("members", c_int), ("place", c_int), ("leader", c_int)]
ddp_ring_choice._fields_ = [
    ("least_rate", c_double), ("from_bytes", c_double)]
ddp_network._fields_ = [
    ("devices", c_int), ("pipelines", c_int), ("stages", c_int), ("dp_bytes", c_double),
    ("pp_bytes", c_double), ("delay_s", POINTER(c_double)), ("rate", POINTER(c_double)),
    ("speed", POINTER(c_double)), ("memory_bytes", POINTER(c_double)), ("group", POINTER(c_int)),
    ("groups", c_int), ("group_name", POINTER(c_char_p)), ("host_rate", POINTER(c_double)),
    ("jitter_s", POINTER(c_double)), ("one_at_a_time", c_int)]
ddp_loss_point._fields_ = [
    ("strategy", c_char * 16), ("stream", c_int), ("period", c_int), ("workers", c_int),
    ("coding", c_int), ("steps", c_double), ("loss", c_double)]
ddp_loss_table._fields_ = [
    ("count", c_int), ("point", POINTER(ddp_loss_point))]
ddp_plan_options._fields_ = [
    ("period", c_int), ("solver", c_int), ("cost", c_int), ("fill", c_int), ("time_limit_s", c_double)]
ddp_plan._fields_ = [
    ("layers", c_int), ("period", c_int), ("step_of", POINTER(c_int)), ("fill", POINTER(c_ubyte)),
    ("solver", c_int), ("cost", c_int), ("objective_s", c_double), ("exposed_s", c_double),
    ("lower_bound_s", c_double)]
ddp_timeline_options._fields_ = [
    ("scheme", c_int), ("alpha_s", c_double), ("partition_params", c_double),
    ("partition_s", c_double), ("credit", c_double), ("operations", c_long),
    ("bucket_bytes", c_double), ("first_bucket_bytes", c_double)]
ddp_interval._fields_ = [
    ("kind", c_int), ("bucket", c_int), ("last", c_int), ("part", c_int), ("parts", c_int),
    ("lane", c_int), ("begin_s", c_double), ("end_s", c_double)]
ddp_timeline._fields_ = [
    ("scheme", c_int), ("buckets", c_int), ("iteration_s", c_double), ("lower_bound_s", c_double),
    ("parts", POINTER(c_int)), ("priority", POINTER(c_int)), ("intervals", c_int),
    ("interval", POINTER(ddp_interval))]
ddp_knapsack_problem._fields_ = [
    ("items", c_int), ("item_s", POINTER(c_double)), ("ready_s", POINTER(c_double)),
    ("value", POINTER(c_double)), ("links", c_int), ("start_s", c_double * 2),
    ("deadline_s", c_double * 2), ("slowdown", c_double * 2)]
ddp_delayed_options._fields_ = [
    ("links", c_int), ("mu", c_double), ("alpha_s", c_double), ("partition_s", c_double),
    ("partition_params", c_double), ("select", c_int), ("solver", c_int), ("capacity_scale", c_double),
    ("target_frequency", c_double), ("no_barrier", c_int)]
ddp_delayed_send._fields_ = [
    ("iteration", c_int), ("fresh", c_int), ("bucket", c_int), ("part", c_int), ("link", c_int),
    ("begin_s", c_double), ("end_s", c_double)]
ddp_delayed_step._fields_ = [
    ("forward_s", c_double), ("backward_s", c_double), ("opened", c_int), ("applied", c_int),
    ("applied_now", c_int), ("first_send", c_int), ("sends", c_int)]
ddp_delayed_plan._fields_ = [
    ("buckets", c_int), ("parts", c_int), ("parts_of", POINTER(c_int)), ("part_s", POINTER(c_double)),
    ("links", c_int), ("warmup", c_int), ("period", c_int), ("step", POINTER(ddp_delayed_step)),
    ("send", POINTER(ddp_delayed_send)), ("sends", c_int), ("updates", c_int), ("k", POINTER(c_int)),
    ("delay", POINTER(c_int)), ("iteration_s", c_double), ("update_frequency", c_double),
    ("forward_s", c_double), ("backward_s", c_double), ("comm_s", c_double),
    ("lower_bound_s", c_double), ("capacity_scale", c_double), ("no_barrier", c_int),
    ("limited", c_int)]
ddp_preserver._fields_ = [
    ("eta", c_double), ("mu", c_double), ("sigma", c_double), ("batch", c_double), ("start", c_double),
    ("target", c_double), ("tolerance", c_double), ("sum", c_int), ("one_sided", c_int),
    ("rotations", c_int)]
ddp_preserved._fields_ = [
    ("expected_base", c_double), ("expected_plan", c_double), ("ratio", c_double), ("accepted", c_int),
    ("retries", c_int)]
ddp_served._fields_ = [
    ("rule", c_int), ("ahead", c_int), ("workers", c_int), ("servers", c_int), ("colocated", c_int),
    ("bytes", POINTER(c_double)), ("late", POINTER(c_double)), ("compute_s", c_double),
    ("bytes_per_s", c_double), ("delay_s", c_double)]
ddp_place_options._fields_ = [
    ("solver", c_int), ("pipelines", c_int), ("stages", c_int), ("seed", c_uint64),
    ("time_limit_s", c_double), ("max_candidates", c_long),
    ("progress", CFUNCTYPE(c_int, c_void_p, c_double, c_double)), ("user", c_void_p)]
ddp_placement._fields_ = [
    ("pipelines", c_int), ("stages", c_int), ("assign", POINTER(c_int)), ("cost_s", c_double),
    ("datap_s", c_double), ("pipelinep_s", c_double), ("proven", c_int), ("solve_s", c_double),
    ("candidates", c_long), ("points", c_int), ("curve", POINTER(c_double))]
ddp_workload_options._fields_ = [
    ("microbatches", c_int), ("samples", c_double), ("forward_only", c_int),
    ("state_factor", c_double)]
ddp_workload_message._fields_ = [
    ("op", c_int), ("user", c_int), ("from", c_int), ("to", c_int), ("gradient", c_int),
    ("bytes", c_double), ("seconds", c_double)]
ddp_workload._fields_ = [
    ("devices", c_int), ("compute_s", POINTER(c_double)), ("receive_s", POINTER(c_double)),
    ("memory_bytes", POINTER(c_double)), ("latency_s", c_double), ("pipeline_s", c_double),
    ("throughput", c_double), ("messages", c_int), ("message", POINTER(ddp_workload_message))]
ddp_fence_options._fields_ = [
    ("solver", c_int), ("work", ddp_workload_options), ("no_memory", c_int), ("allow_idle", c_int),
    ("message_bytes", c_double), ("resolution", c_double)]
ddp_fence_segment._fields_ = [
    ("device", c_int), ("first", c_int), ("end", c_int)]
ddp_fence_plan._fields_ = [
    ("solver", c_int), ("devices", c_int), ("ops", c_int), ("segments", c_int),
    ("segment", POINTER(ddp_fence_segment)), ("order", POINTER(c_int)), ("cluster", POINTER(c_int)),
    ("clusters", c_int), ("device_of", POINTER(c_int)), ("message_bytes", c_double), ("proven", c_int),
    ("connected", c_int), ("work", ddp_workload)]
ddp_candidate._fields_ = [
    ("strategy", c_char_p), ("stream", c_int), ("period", c_int), ("coding", c_int)]
ddp_prediction._fields_ = [
    ("step_s", c_double), ("compute_s", c_double), ("sent_bytes", c_double)]
ddp_loss_fit._fields_ = [
    ("table", POINTER(ddp_loss_table)), ("penalty", POINTER(c_double)), ("floor", c_double),
    ("scale", c_double), ("decay", c_double), ("by_period", c_double), ("by_steps", c_double),
    ("by_workers", c_double), ("least_steps", c_double), ("most_steps", c_double),
    ("least_workers", c_int), ("most_workers", c_int)]
ddp_choice_options._fields_ = [
    ("profile", POINTER(ddp_profile)), ("workers", c_int), ("rate", c_double), ("delay_s", c_double),
    ("period", c_int), ("steps", c_double), ("loss_budget", c_double),
    ("losses", POINTER(ddp_loss_table)), ("candidate", POINTER(ddp_candidate)), ("candidates", c_int)]
ddp_choice_row._fields_ = [
    ("candidate", ddp_candidate), ("step_s", c_double), ("sent_bytes", c_double),
    ("penalty", c_double), ("steps", c_double), ("seconds", c_double), ("allowed", c_int)]
ddp_choice._fields_ = [
    ("count", c_int), ("row", POINTER(ddp_choice_row)), ("chosen", c_int), ("runner_up", c_int),
    ("ssgd_s", c_double), ("reason", c_char * 400)]
ddp_task._fields_ = [
    ("kind", c_int), ("micro_batch", c_int)]
ddp_pipeline_shape._fields_ = [
    ("schedule", c_int), ("stages", c_int), ("micro_batches", c_int), ("ahead", c_int)]
ddp_stage_cost._fields_ = [
    ("forward_s", c_double), ("inputs_s", c_double), ("weights_s", c_double)]
ddp_boundary._fields_ = [
    ("from", c_int), ("to", c_int), ("forward_s", c_double), ("backward_s", c_double),
    ("alpha_s", c_double), ("one_way", c_int)]
ddp_pipeline_costs._fields_ = [
    ("shape", ddp_pipeline_shape), ("stage", POINTER(ddp_stage_cost)), ("boundaries", c_int),
    ("boundary", POINTER(ddp_boundary))]
ddp_pipeline_slot._fields_ = [
    ("stage", c_int), ("boundary", c_int), ("task", ddp_task), ("gradient", c_int),
    ("begin_s", c_double), ("end_s", c_double)]
ddp_pipeline_times._fields_ = [
    ("step_s", c_double), ("bubble_pct", c_double), ("held", POINTER(c_int)),
    ("slot", POINTER(ddp_pipeline_slot)), ("slots", c_int)]
ddp_packed._fields_ = [
    ("packing", c_int), ("n", c_uint64), ("k", c_uint64)]
ddp_adatopk_options._fields_ = [
    ("ratio", c_double), ("factor", c_double), ("packing", c_int), ("uniform", c_int)]
ddp_link_compression._fields_ = [
    ("ratio", c_double), ("keep", c_size_t), ("dense", c_int), ("bytes", c_size_t),
    ("link_s", c_double)]
ddp_rng._fields_ = [
    ("state", c_uint64)]
ddp_shape._fields_ = [
    ("dims", c_int), ("dim", c_long * 4)]
ddp_param._fields_ = [
    ("name", c_char_p), ("shape", ddp_shape), ("init", c_int), ("scale", c_float), ("matrix", c_int)]
ddp_op_spec._fields_ = [
    ("inputs", c_int), ("in", ddp_shape * 4), ("in_type", c_int * 4), ("arg", c_double * 8),
    ("out", ddp_shape), ("params", c_int), ("param", ddp_param * 4), ("buffers", c_int),
    ("buffer", ddp_param * 2), ("saved", c_size_t), ("flops", c_double), ("backward_flops", c_double),
    ("in_place_ok", c_int), ("out_unread", c_int), ("grad_over_input", c_int)]
ddp_op_call._fields_ = [
    ("spec", POINTER(ddp_op_spec)), ("in", c_void_p * 4), ("param", c_void_p * 4),
    ("buffer", c_void_p * 2), ("out", c_void_p), ("saved", c_void_p), ("grad_out", c_void_p),
    ("grad_in", c_void_p * 4), ("add_in", c_int * 4), ("grad_param", c_void_p * 4), ("pool", c_void_p),
    ("training", c_int), ("random", c_uint64), ("inner", c_void_p), ("through", c_int),
    ("kernels", c_int)]
ddp_op._fields_ = [
    ("name", c_char_p), ("shape", CFUNCTYPE(c_int, POINTER(ddp_op_spec), POINTER(ddp_error))),
    ("forward", CFUNCTYPE(None, POINTER(ddp_op_call))),
    ("backward", CFUNCTYPE(None, POINTER(ddp_op_call)))]
ddp_op_pair._fields_ = [
    ("forward", CFUNCTYPE(None, POINTER(ddp_op_call), POINTER(ddp_op_call))),
    ("backward", CFUNCTYPE(None, POINTER(ddp_op_call), POINTER(ddp_op_call))), ("reader", c_char_p)]
ddp_node_info._fields_ = [
    ("name", c_char_p), ("layer", c_char_p), ("layer_index", c_int), ("inputs", c_int),
    ("input", c_int * 4), ("out", ddp_shape), ("flops", c_double), ("backward_flops", c_double),
    ("output_bytes", c_double), ("param_bytes", c_double), ("buffer_bytes", c_double)]
ddp_edge_wire._fields_ = [
    ("coding", c_int), ("ratio", c_double), ("factor", c_double), ("feedback", c_int)]
ddp_pipe_config._fields_ = [
    ("schedule", c_int), ("stages", c_int), ("stage_of", POINTER(c_int)), ("rank_of", POINTER(c_int)),
    ("ahead", c_int), ("edge", ddp_edge_wire), ("samples", c_long), ("batch", c_int)]
ddp_pipe_stats._fields_ = [
    ("steps", c_long), ("step_s", c_double), ("bubble_pct", c_double), ("boundary_bytes", c_double),
    ("predicted_step_s", c_double)]
ddp_pipe_layout._fields_ = [
    ("stages", c_int), ("pipelines", c_int), ("rank_of", POINTER(c_int)), ("stage_of", POINTER(c_int))]
ddp_simulation._fields_ = [
    ("fold", c_int), ("paper", c_void_p), ("paper_bytes", c_size_t), ("scale", c_double)]
ddp_simulated._fields_ = [
    ("seconds", c_double), ("workers", c_int), ("events", c_int64)]
ddp_gpt2_config._fields_ = [
    ("vocabulary", c_long), ("context", c_long), ("layers", c_long), ("heads", c_long),
    ("dim", c_long), ("batch", c_long), ("dropout", c_float), ("deviation", c_float),
    ("recompute", c_int)]
ddp_llama2_config._fields_ = [
    ("vocabulary", c_long), ("context", c_long), ("layers", c_long), ("heads", c_long),
    ("kv_heads", c_long), ("dim", c_long), ("hidden", c_long), ("batch", c_long), ("eps", c_double),
    ("theta", c_double), ("tied", c_int), ("deviation", c_float), ("recompute", c_int)]
ddp_mlp_config._fields_ = [
    ("batch", c_long), ("inputs", c_long), ("hidden", c_long * 8), ("classes", c_long)]
ddp_resnet_config._fields_ = [
    ("depth", c_int), ("classes", c_long), ("size", c_long), ("channels", c_long), ("batch", c_long),
    ("cifar", c_int), ("recompute", c_int)]
ddp_vgg_config._fields_ = [
    ("depth", c_int), ("classes", c_long), ("size", c_long), ("channels", c_long), ("batch", c_long),
    ("dropout", c_float), ("recompute", c_int)]
ddp_token_range._fields_ = [
    ("tokens", c_void_p), ("first", c_long), ("count", c_long), ("seq", c_long)]
ddp_images._fields_ = [
    ("count", c_long), ("channels", c_long), ("height", c_long), ("width", c_long),
    ("classes", c_long), ("pixels", POINTER(c_ubyte)), ("labels", POINTER(c_ubyte)),
    ("name", c_char_p)]
ddp_image_range._fields_ = [
    ("images", POINTER(ddp_images)), ("first", c_long), ("count", c_long)]
ddp_image_norm._fields_ = [
    ("mean", c_float * 3), ("deviation", c_float * 3)]
ddp_safetensor._fields_ = [
    ("name", c_char_p), ("type", c_int), ("dims", c_int), ("dim", c_int64 * 8), ("offset", c_uint64),
    ("bytes", c_uint64)]
ddp_report_step._fields_ = [
    ("time_s", c_double), ("loss", c_double), ("bytes", c_int64), ("divergence", c_double)]
ddp_report_worker._fields_ = [
    ("spans", POINTER(ddp_span)), ("count", c_int), ("slot", POINTER(ddp_pipeline_slot)),
    ("slots", c_int), ("pipeline", c_int)]
ddp_report_layer._fields_ = [
    ("name", c_char_p), ("params", c_double), ("backward_s", c_double), ("comm_s", c_double)]
ddp_report_note._fields_ = [
    ("time_s", c_double), ("step", c_long), ("kind", c_char_p), ("text", c_char_p)]
ddp_report_run._fields_ = [
    ("strategy", c_char_p), ("step_ms", c_double), ("hidden_pct", c_double),
    ("predicted_step_ms", c_double), ("predicted_hidden_pct", c_double), ("bytes_sent", c_int64),
    ("time_to_loss_s", c_double), ("final_loss", c_double), ("param_hash", c_char_p),
    ("slowest_rank", c_int), ("slow_ratio", c_double), ("replans", c_long),
    ("steps", POINTER(ddp_report_step)), ("step_count", c_int), ("period", c_int),
    ("step_of", POINTER(c_int)), ("fill", POINTER(c_ubyte)), ("layer_divergence", POINTER(c_double)),
    ("notes", POINTER(ddp_report_note)), ("note_count", c_int),
    ("workers", POINTER(ddp_report_worker)), ("worker_count", c_int), ("window_begin_s", c_double),
    ("window_end_s", c_double), ("schedule", c_char_p), ("stages", c_int)]
ddp_report_data._fields_ = [
    ("title", c_char_p), ("command", c_char_p), ("version", c_char_p), ("host", c_char_p),
    ("net", c_char_p), ("model", c_char_p), ("seed", c_uint64), ("workers", c_int),
    ("target_loss", c_double), ("layers", POINTER(ddp_report_layer)), ("layer_count", c_int),
    ("runs", POINTER(ddp_report_run)), ("run_count", c_int)]
ddp_report_pipeline._fields_ = [
    ("name", c_char_p), ("stages", c_int), ("slot", POINTER(ddp_pipeline_slot)), ("slots", c_int),
    ("begin_s", c_double), ("step_s", c_double), ("bubble_pct", c_double)]
ddp_backend_peers._fields_ = [
    ("rank", c_int), ("world", c_int), ("join_timeout_s", c_double), ("op_timeout_s", c_double),
    ("share", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(ddp_error))),
    ("watch", CFUNCTYPE(c_int, c_void_p, c_double, POINTER(ddp_error))), ("user", c_void_p)]
ddp_backend._fields_ = [
    ("name", c_char_p), ("device", c_int), ("numbers", c_int), ("channels_last", c_int),
    ("open", CFUNCTYPE(c_int, POINTER(ddp_backend), c_int, c_void_p, POINTER(c_void_p), POINTER(ddp_error))),
    ("close", CFUNCTYPE(None, c_void_p)),
    ("attach", CFUNCTYPE(None, c_void_p, POINTER(ddp_logger), c_double)),
    ("wait", CFUNCTYPE(c_int, c_void_p, POINTER(ddp_error))),
    ("check", CFUNCTYPE(c_int, c_void_p, POINTER(ddp_error))),
    ("alloc", CFUNCTYPE(c_void_p, c_void_p, c_size_t)),
    ("release", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)),
    ("pin", CFUNCTYPE(c_void_p, c_void_p, c_size_t)),
    ("unpin", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)),
    ("memory", CFUNCTYPE(None, c_void_p, POINTER(c_double), POINTER(c_double))),
    ("element_bytes", CFUNCTYPE(c_int, c_void_p)),
    ("mirror", CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_size_t)),
    ("forget", CFUNCTYPE(None, c_void_p, c_void_p)),
    ("upload", CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t)),
    ("download", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(ddp_error))),
    ("copy", CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t)),
    ("zero", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t)),
    ("early", CFUNCTYPE(None, c_void_p, c_void_p)),
    ("early_value", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p)),
    ("upload_elements", CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, POINTER(ddp_shape))),
    ("download_elements", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, POINTER(ddp_shape), POINTER(ddp_error))),
    ("axpy", CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t, c_float)),
    ("scale", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_float)),
    ("fill", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_float)),
    ("compensate", CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_float)),
    ("norm2", CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, POINTER(c_double), POINTER(ddp_error))),
    ("update", CFUNCTYPE(None, c_void_p, POINTER(ddp_optimizer), POINTER(ddp_update), c_int)),
    ("split", CFUNCTYPE(None, c_void_p, c_int, c_void_p, c_void_p, c_size_t)),
    ("clip_add", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_int)),
    ("clip_scale", CFUNCTYPE(None, c_void_p, c_void_p, c_size_t, c_float)),
    ("op", CFUNCTYPE(POINTER(ddp_op), c_void_p, c_char_p)),
    ("pair", CFUNCTYPE(POINTER(ddp_op_pair), c_void_p, c_char_p, c_char_p)),
    ("scratch", CFUNCTYPE(c_size_t, c_void_p, POINTER(ddp_op), c_void_p)),
    ("reserve", CFUNCTYPE(c_int, c_void_p, c_size_t)), ("compute", CFUNCTYPE(c_void_p, c_void_p)),
    ("slots", CFUNCTYPE(c_int, c_void_p, c_int)), ("record", CFUNCTYPE(None, c_void_p, c_int)),
    ("fetch", CFUNCTYPE(c_int, c_void_p, c_int, c_void_p, c_void_p, c_size_t, POINTER(ddp_error))),
    ("give", CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(ddp_error))),
    ("raise", CFUNCTYPE(None, c_void_p, c_int, c_uint)),
    ("hold", CFUNCTYPE(None, c_void_p, c_int, c_uint)), ("raise_all", CFUNCTYPE(None, c_void_p)),
    ("join", CFUNCTYPE(c_int, c_void_p, POINTER(ddp_backend_peers), POINTER(ddp_error))),
    ("average", CFUNCTYPE(c_int, c_void_p, c_int, POINTER(c_void_p), POINTER(c_size_t), c_int, c_int,
        POINTER(ddp_error))),
    ("follow", CFUNCTYPE(None, c_void_p, c_int)),
    ("spread", CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_uint, POINTER(c_void_p), POINTER(c_size_t), c_int,
        POINTER(ddp_error))),
    ("finish", CFUNCTYPE(None, c_void_p, c_int)),
    ("poll", CFUNCTYPE(c_int, c_void_p, POINTER(ddp_error))),
    ("leave", CFUNCTYPE(None, c_void_p, c_int)), ("marks", CFUNCTYPE(c_int, c_void_p, c_int)),
    ("mark", CFUNCTYPE(None, c_void_p, c_int)), ("marked", CFUNCTYPE(c_double, c_void_p, c_int)),
    ("range", CFUNCTYPE(None, c_void_p, c_char_p)),
    ("prepare", CFUNCTYPE(c_int, c_void_p, c_int, POINTER(ddp_error))),
    ("splits", CFUNCTYPE(c_int, c_void_p))]

STRUCTS = [ddp_error, ddp_logger, ddp_allocator, ddp_step_info, ddp_program_state, ddp_config, ddp_setting,
        ddp_block, ddp_matrix, ddp_layer, ddp_update, ddp_optimizer, ddp_lr_schedule, ddp_piece, ddp_received,
        ddp_owner, ddp_maker, ddp_message, ddp_transfer, ddp_chosen, ddp_blob, ddp_strategy_ops, ddp_link,
        ddp_linkfit, ddp_profile, ddp_oplist_entry, ddp_oplist, ddp_stats, ddp_note, ddp_span, ddp_link_stats,
        ddp_pair, ddp_probe_result, ddp_sites, ddp_ring_choice, ddp_network, ddp_loss_point, ddp_loss_table,
        ddp_plan_options, ddp_plan, ddp_timeline_options, ddp_interval, ddp_timeline, ddp_knapsack_problem,
        ddp_delayed_options, ddp_delayed_send, ddp_delayed_step, ddp_delayed_plan, ddp_preserver, ddp_preserved,
        ddp_served, ddp_place_options, ddp_placement, ddp_workload_options, ddp_workload_message, ddp_workload,
        ddp_fence_options, ddp_fence_segment, ddp_fence_plan, ddp_candidate, ddp_prediction, ddp_loss_fit,
        ddp_choice_options, ddp_choice_row, ddp_choice, ddp_task, ddp_pipeline_shape, ddp_stage_cost, ddp_boundary,
        ddp_pipeline_costs, ddp_pipeline_slot, ddp_pipeline_times, ddp_packed, ddp_adatopk_options,
        ddp_link_compression, ddp_rng, ddp_shape, ddp_param, ddp_op_spec, ddp_op_call, ddp_op, ddp_op_pair,
        ddp_node_info, ddp_edge_wire, ddp_pipe_config, ddp_pipe_stats, ddp_pipe_layout, ddp_simulation,
        ddp_simulated, ddp_gpt2_config, ddp_llama2_config, ddp_mlp_config, ddp_resnet_config, ddp_vgg_config,
        ddp_token_range, ddp_images, ddp_image_range, ddp_image_norm, ddp_safetensor, ddp_report_step,
        ddp_report_worker, ddp_report_layer, ddp_report_note, ddp_report_run, ddp_report_data, ddp_report_pipeline,
        ddp_backend_peers, ddp_backend]

# name: (result type, argument types)
FUNCTIONS = {
    "ddp_status_text": (c_char_p, [c_int]),
    "ddp_status_exit_code": (c_int, [c_int]),
    "ddp_open": (c_void_p, [POINTER(ddp_config), POINTER(ddp_error)]),
    "ddp_close": (None, [c_void_p]),
    "ddp_add_layer": (c_int, [c_void_p, POINTER(ddp_layer)]),
    "ddp_set_optimizer": (c_int, [c_void_p, POINTER(ddp_optimizer)]),
    "ddp_forward_begin": (c_int, [c_void_p, c_int]),
    "ddp_backward_begin": (c_int, [c_void_p, c_int]),
    "ddp_backward_end": (c_int, [c_void_p, c_int]),
    "ddp_skip": (c_int, [c_void_p, c_int]),
    "ddp_backward_rest": (c_int, [c_void_p, POINTER(c_ubyte)]),
    "ddp_due": (c_int, [c_void_p, POINTER(c_ubyte)]),
    "ddp_left_out": (c_int, [c_void_p, c_int]),
    "ddp_report": (c_int, [c_void_p, POINTER(ddp_step_info)]),
    "ddp_step_end": (c_int, [c_void_p]),
    "ddp_launch": (c_int, [POINTER(ddp_config), CFUNCTYPE(c_int, c_void_p, c_void_p), c_void_p, POINTER(ddp_error)]),
    "ddp_add_block": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p, c_size_t]),
    "ddp_add_stack": (c_int, [c_void_p, c_char_p, c_void_p, c_void_p, c_int, c_size_t]),
    "ddp_layer_named": (c_int, [c_void_p, c_char_p]),
    "ddp_same": (c_int, [c_void_p, c_char_p, c_int64]),
    "ddp_usually_same": (c_int, [c_void_p, c_char_p, c_int64]),
    "ddp_unlike": (c_char_p, [c_void_p]),
    "ddp_add_state": (c_int, [c_void_p, POINTER(ddp_program_state)]),
    "ddp_wait": (c_int, [c_void_p]),
    "ddp_sync_all": (c_int, [c_void_p]),
    "ddp_share": (c_int, [c_void_p]),
    "ddp_serve": (c_int, [c_void_p]),
    "ddp_strategy_name": (c_char_p, [c_int]),
    "ddp_strategy_named": (c_int, [c_char_p]),
    "ddp_strategy_number": (c_int, [c_int]),
    "ddp_strategy_traits": (c_uint, [c_int]),
    "ddp_transport_named": (c_int, [c_char_p]),
    "ddp_algorithm_named": (c_int, [c_char_p, POINTER(c_int)]),
    "ddp_wire_named": (c_int, [c_char_p, POINTER(c_int)]),
    "ddp_wire_name": (c_char_p, [c_int]),
    "ddp_config_set": (c_int, [POINTER(ddp_config), c_char_p, c_char_p, POINTER(ddp_error)]),
    "ddp_config_describe": (c_int, [POINTER(ddp_config), c_int, POINTER(ddp_setting)]),
    "ddp_launched": (c_int, [POINTER(c_char_p), POINTER(c_int), POINTER(c_int), POINTER(ddp_error)]),
    "ddp_rank": (c_int, [c_void_p]),
    "ddp_world": (c_int, [c_void_p]),
    "ddp_step": (c_long, [c_void_p]),
    "ddp_taken": (c_int64, [c_void_p]),
    "ddp_local_rank": (c_int, [c_void_p]),
    "ddp_set_lr": (None, [c_void_p, c_float]),
    "ddp_last_error": (POINTER(ddp_error), [c_void_p]),
    "ddp_lost_rank": (c_int, [c_void_p]),
    "ddp_abort": (None, [c_void_p, c_char_p]),
    "ddp_servers": (c_int, [c_void_p]),
    "ddp_workers": (c_int, [c_void_p]),
    "ddp_live": (c_uint64, [c_void_p]),
    "ddp_epoch": (c_uint, [c_void_p]),
    "ddp_links": (c_int, [c_void_p]),
    "ddp_sgd": (ddp_optimizer, [c_float, c_float]),
    "ddp_sgd_decay": (ddp_optimizer, [c_float, c_float, c_float]),
    "ddp_nesterov": (ddp_optimizer, [c_float, c_float, c_float]),
    "ddp_adam": (ddp_optimizer, [c_float, c_float, c_float, c_float, c_float]),
    "ddp_adamw": (ddp_optimizer, [c_float, c_float, c_float, c_float, c_float]),
    "ddp_muon": (ddp_optimizer, [c_float, c_float, c_float, c_float]),
    "ddp_own_update": (ddp_optimizer, []),
    "ddp_own_update_first": (ddp_optimizer, []),
    "ddp_lr_at": (c_double, [POINTER(ddp_lr_schedule), c_long]),
    "ddp_schedule_named": (c_int, [c_char_p, POINTER(c_int)]),
    "ddp_post": (c_int, [c_void_p, POINTER(ddp_message), POINTER(c_long)]),
    "ddp_hold": (c_int, [c_void_p, c_long, c_int]),
    "ddp_hold_input": (c_int, [c_void_p, c_long]),
    "ddp_is_done": (c_int, [c_void_p, c_long]),
    "ddp_average": (c_int, [c_void_p, c_int, c_int, c_int]),
    "ddp_average_parts": (c_int, [c_void_p, c_int, POINTER(c_ubyte), c_int, c_int]),
    "ddp_average_hold": (c_int, [c_void_p, c_int]),
    "ddp_average_exact": (c_int, [c_void_p, c_int]),
    "ddp_update_layer": (c_int, [c_void_p, c_int, c_void_p]),
    "ddp_update_late": (c_int, [c_void_p, c_int, c_void_p, c_float]),
    "ddp_update_copy": (c_int, [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_float]),
    "ddp_clip": (c_int, [c_void_p]),
    "ddp_no_gradient": (c_int, [c_void_p, c_size_t]),
    "ddp_axpy": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t, c_float]),
    "ddp_copy": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ddp_scale": (c_int, [c_void_p, c_void_p, c_size_t, c_float]),
    "ddp_set": (c_int, [c_void_p, c_void_p, c_size_t, c_float]),
    "ddp_norm2": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_double)]),
    "ddp_download": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ddp_upload": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ddp_server_post": (c_int, [c_void_p, POINTER(ddp_message), POINTER(c_long)]),
    "ddp_server_done": (c_int, [c_void_p, c_long]),
    "ddp_server_wait": (c_int, [c_void_p, POINTER(c_long), c_int]),
    "ddp_server_wake": (None, [c_void_p]),
    "ddp_server_set": (None, [c_void_p, POINTER(c_int), c_int]),
    "ddp_server_await": (c_int, [c_void_p, POINTER(c_int)]),
    "ddp_update_apart": (None, [c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_long, c_float]),
    "ddp_late_apply": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_int, c_float]),
    "ddp_split": (c_int, [c_int, c_void_p, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_keep": (c_void_p, [c_void_p, c_int, c_char_p, c_size_t, c_int]),
    "ddp_kept_wait": (c_int, [c_void_p, c_int]),
    "ddp_explain": (None, [c_void_p, c_char_p]),
    "ddp_layers": (c_int, [c_void_p]),
    "ddp_name_of": (c_char_p, [c_void_p, c_int]),
    "ddp_parts_of": (c_int, [c_void_p, c_int]),
    "ddp_gradients_of": (POINTER(ddp_piece), [c_void_p, c_int, POINTER(c_int)]),
    "ddp_parameters_of": (POINTER(ddp_piece), [c_void_p, c_int, POINTER(c_int)]),
    "ddp_trained_of": (POINTER(ddp_piece), [c_void_p, c_int, POINTER(c_int)]),
    "ddp_state_of": (c_void_p, [c_void_p, c_int, POINTER(c_size_t)]),
    "ddp_updates_of": (c_long, [c_void_p, c_int]),
    "ddp_computed_s": (c_double, [c_void_p]),
    "ddp_nominal_compute_s": (c_double, [c_void_p]),
    "ddp_nominal_rate": (c_double, [c_void_p]),
    "ddp_described_rate": (c_double, [c_void_p, POINTER(c_double)]),
    "ddp_reported": (POINTER(ddp_step_info), [c_void_p]),
    "ddp_stats_of": (POINTER(ddp_stats), [c_void_p]),
    "ddp_others_of": (POINTER(ddp_piece), [c_void_p, c_int, POINTER(c_int)]),
    "ddp_group_of": (c_int, [c_void_p, c_int]),
    "ddp_group_size": (c_int, [c_void_p, c_int]),
    "ddp_blocks_of": (c_int, [c_void_p, c_int, POINTER(c_int)]),
    "ddp_sites_of": (POINTER(ddp_sites), [c_void_p]),
    "ddp_segment_of": (c_size_t, [c_void_p, c_int, c_int, c_size_t, POINTER(c_size_t)]),
    "ddp_settings": (POINTER(ddp_config), [c_void_p]),
    "ddp_rate": (c_float, [c_void_p]),
    "ddp_coding_of": (c_int, [c_void_p]),
    "ddp_link_of": (c_int, [c_void_p, c_int]),
    "ddp_residual_of": (c_void_p, [c_void_p, c_int]),
    "ddp_has_forward": (c_int, [c_void_p]),
    "ddp_blob_new": (ddp_blob, [c_size_t]),
    "ddp_blob_free": (None, [POINTER(ddp_blob)]),
    "ddp_link_average": (ddp_link, [c_double, c_double, c_int]),
    "ddp_link_fit": (c_int, [POINTER(c_double), POINTER(c_double), c_int, POINTER(ddp_link), POINTER(ddp_error)]),
    "ddp_linkfit_start": (None, [POINTER(ddp_linkfit), ddp_link, c_double, c_double]),
    "ddp_linkfit_add": (None, [POINTER(ddp_linkfit), c_double, c_double]),
    "ddp_link_drift": (c_double, [ddp_link, ddp_link, POINTER(c_double), c_int]),
    "ddp_profile_read": (c_int, [c_char_p, POINTER(ddp_link), POINTER(ddp_profile), POINTER(ddp_error)]),
    "ddp_profile_write": (c_int, [POINTER(ddp_profile), c_char_p, POINTER(ddp_error)]),
    "ddp_profile_new": (c_int, [c_int, POINTER(ddp_profile), POINTER(ddp_error)]),
    "ddp_profile_free": (None, [POINTER(ddp_profile)]),
    "ddp_profile_check": (c_int, [POINTER(ddp_profile), POINTER(ddp_error)]),
    "ddp_profile_split": (c_int, [POINTER(ddp_profile), c_double, c_double, POINTER(ddp_profile),
        POINTER(POINTER(c_int)), POINTER(ddp_error)]),
    "ddp_oplist_new": (c_int, [c_int, POINTER(ddp_oplist), POINTER(ddp_error)]),
    "ddp_oplist_set": (c_int, [POINTER(ddp_oplist), c_int, c_char_p, POINTER(c_int), c_int, c_double, c_double,
        c_double, POINTER(ddp_error)]),
    "ddp_oplist_free": (None, [POINTER(ddp_oplist)]),
    "ddp_oplist_check": (c_int, [POINTER(ddp_oplist), POINTER(ddp_error)]),
    "ddp_oplist_read": (c_int, [c_char_p, POINTER(ddp_oplist), POINTER(ddp_error)]),
    "ddp_oplist_write": (c_int, [POINTER(ddp_oplist), c_char_p, POINTER(ddp_error)]),
    "ddp_get_stats": (None, [c_void_p, POINTER(ddp_stats)]),
    "ddp_divergence": (c_double, [c_void_p, c_int]),
    "ddp_last_algorithm": (c_char_p, [c_void_p]),
    "ddp_plan_get": (POINTER(ddp_plan), [c_void_p]),
    "ddp_profile_get": (POINTER(ddp_profile), [c_void_p]),
    "ddp_plan_adopt": (c_int, [c_void_p, POINTER(ddp_plan)]),
    "ddp_plan_read": (c_int, [c_char_p, c_int, POINTER(ddp_plan), POINTER(ddp_error)]),
    "ddp_trace_copy": (c_int, [c_void_p, POINTER(ddp_span), c_int]),
    "ddp_dump": (c_int, [c_void_p, c_char_p, POINTER(ddp_error)]),
    "ddp_notes": (c_int, [c_void_p, POINTER(ddp_note), c_int]),
    "ddp_note_name": (c_char_p, [c_int]),
    "ddp_note_text": (None, [POINTER(ddp_note), c_char_p, c_size_t]),
    "ddp_span_kind_name": (c_char_p, [c_int]),
    "ddp_checkpoint_save": (c_int, [c_void_p, c_char_p, c_int]),
    "ddp_checkpoint_load": (c_int, [c_void_p, c_char_p, POINTER(c_int)]),
    "ddp_all_reduce": (c_int, [c_void_p, c_void_p, c_size_t, c_float]),
    "ddp_all_mean": (c_int, [c_void_p, c_void_p, c_size_t]),
    "ddp_broadcast": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "ddp_all_gather": (c_int, [c_void_p, c_void_p, c_size_t]),
    "ddp_reduce_scatter": (c_int, [c_void_p, c_void_p, c_size_t, c_float]),
    "ddp_barrier": (c_int, [c_void_p]),
    "ddp_send": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "ddp_recv": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "ddp_exchange": (c_int, [c_void_p, POINTER(ddp_message)]),
    "ddp_all_reduce_float": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "ddp_all_reduce_double": (c_int, [c_void_p, POINTER(c_double), c_size_t, c_int]),
    "ddp_all_reduce_int64": (c_int, [c_void_p, POINTER(c_int64), c_size_t, c_int]),
    "ddp_broadcast_bytes": (c_int, [c_void_p, c_void_p, c_size_t, c_int]),
    "ddp_all_gather_bytes": (c_int, [c_void_p, c_void_p, c_size_t]),
    "ddp_measure_links": (c_int, [c_void_p]),
    "ddp_get_link_stats": (c_int, [c_void_p, c_int, POINTER(ddp_link_stats)]),
    "ddp_probe": (c_int, [c_void_p, POINTER(ddp_probe_result)]),
    "ddp_probe_free": (None, [POINTER(ddp_probe_result)]),
    "ddp_probe_network": (c_int, [POINTER(ddp_probe_result), POINTER(ddp_network), POINTER(ddp_error)]),
    "ddp_group": (c_int, [c_void_p, POINTER(c_int), c_int, POINTER(c_int)]),
    "ddp_sites_open": (c_int, [c_void_p, POINTER(c_int), POINTER(ddp_sites)]),
    "ddp_sites_all_reduce": (c_int, [c_void_p, POINTER(ddp_sites), c_void_p, c_size_t, c_float]),
    "ddp_ring_tune": (c_int, [c_void_p, POINTER(ddp_probe_result), POINTER(ddp_ring_choice)]),
    "ddp_net_parse": (c_int, [c_char_p, POINTER(c_double), POINTER(c_double), POINTER(ddp_error)]),
    "ddp_network_read": (c_int, [c_char_p, c_char_p, POINTER(ddp_network), POINTER(ddp_error)]),
    "ddp_network_write": (c_int, [POINTER(ddp_network), c_char_p, POINTER(ddp_error)]),
    "ddp_network_new": (c_int, [c_int, POINTER(ddp_network), POINTER(ddp_error)]),
    "ddp_network_free": (None, [POINTER(ddp_network)]),
    "ddp_network_check": (c_int, [POINTER(ddp_network), POINTER(ddp_error)]),
    "ddp_network_noise": (c_int, [POINTER(ddp_network), c_uint64, c_double, c_double, POINTER(ddp_error)]),
    "ddp_loss_table_read": (c_int, [c_char_p, POINTER(ddp_loss_table), POINTER(ddp_error)]),
    "ddp_loss_table_free": (None, [POINTER(ddp_loss_table)]),
    "ddp_loss_table_check": (c_int, [POINTER(ddp_loss_table), POINTER(ddp_error)]),
    "ddp_graph_oplist": (c_int, [c_void_p, POINTER(ddp_oplist), POINTER(ddp_error)]),
    "ddp_tour_open": (c_int, [c_int, POINTER(c_double), c_int, c_int, POINTER(c_int), POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_plan_ring": (c_int, [c_int, POINTER(c_double), POINTER(c_double), POINTER(c_int), POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_plan_partial": (c_int, [POINTER(ddp_profile), POINTER(ddp_plan_options), POINTER(ddp_plan),
        POINTER(ddp_error)]),
    "ddp_plan_new": (c_int, [c_int, c_int, POINTER(ddp_plan), POINTER(ddp_error)]),
    "ddp_plan_free": (None, [POINTER(ddp_plan)]),
    "ddp_plan_evaluate": (c_int, [POINTER(ddp_profile), c_int, POINTER(ddp_plan), POINTER(ddp_error)]),
    "ddp_plan_step_time": (c_int, [POINTER(ddp_profile), POINTER(c_int), c_int, c_int, POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_plan_landing": (c_int, [POINTER(ddp_profile), POINTER(ddp_plan), POINTER(c_int), POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_plan_curve": (c_int, [POINTER(ddp_profile), c_int, c_int, POINTER(c_double), POINTER(ddp_error)]),
    "ddp_plan_hash": (c_uint64, [POINTER(ddp_plan)]),
    "ddp_solver_name": (c_char_p, [c_int]),
    "ddp_cost_name": (c_char_p, [c_int]),
    "ddp_fill_name": (c_char_p, [c_int]),
    "ddp_solver_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_cost_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_fill_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_plan_timeline": (c_int, [POINTER(ddp_profile), POINTER(ddp_timeline_options), POINTER(ddp_timeline),
        POINTER(ddp_error)]),
    "ddp_timeline_free": (None, [POINTER(ddp_timeline)]),
    "ddp_timeline_exposed": (c_int, [POINTER(ddp_profile), POINTER(ddp_timeline), c_double, POINTER(c_double),
        POINTER(c_double), POINTER(ddp_error)]),
    "ddp_scheme_name": (c_char_p, [c_int]),
    "ddp_scheme_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_knapsack": (c_int, [POINTER(ddp_knapsack_problem), c_int, POINTER(c_int), POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_knapsack_solver_name": (c_char_p, [c_int]),
    "ddp_knapsack_solver_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_plan_delayed": (c_int, [POINTER(ddp_profile), POINTER(ddp_delayed_options), POINTER(ddp_delayed_plan),
        POINTER(ddp_error)]),
    "ddp_delayed_plan_free": (None, [POINTER(ddp_delayed_plan)]),
    "ddp_delayed_select_name": (c_char_p, [c_int]),
    "ddp_delayed_select_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_preserver_expect": (c_double, [POINTER(ddp_preserver), c_double, c_int]),
    "ddp_preserver_test": (c_int, [POINTER(ddp_preserver), POINTER(c_int), c_int, POINTER(ddp_preserved),
        POINTER(ddp_error)]),
    "ddp_preserver_plan": (c_int, [POINTER(ddp_profile), POINTER(ddp_delayed_options), POINTER(ddp_preserver),
        POINTER(ddp_delayed_plan), POINTER(ddp_preserved), POINTER(ddp_error)]),
    "ddp_osp_importance": (c_int, [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_double), POINTER(ddp_error)]),
    "ddp_osp_rank": (c_int, [c_int, POINTER(c_double), POINTER(c_double), c_double, c_int, POINTER(c_ubyte),
        POINTER(c_double), POINTER(ddp_error)]),
    "ddp_osp_umax": (c_int, [c_double, c_double, c_double, c_int, c_double, c_int, POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_osp_budget": (c_double, [c_double, c_double, c_double]),
    "ddp_served_step": (c_int, [POINTER(ddp_served), c_void_p, POINTER(c_double), POINTER(ddp_error)]),
    "ddp_served_room": (c_size_t, [c_int, c_int]),
    "ddp_place": (c_int, [POINTER(ddp_network), POINTER(ddp_place_options), POINTER(ddp_placement),
        POINTER(ddp_error)]),
    "ddp_place_cost": (c_int, [POINTER(ddp_network), c_int, c_int, POINTER(c_int), POINTER(c_double),
        POINTER(c_double), POINTER(c_double), POINTER(ddp_error)]),
    "ddp_placement_free": (None, [POINTER(ddp_placement)]),
    "ddp_place_solver_name": (c_char_p, [c_int]),
    "ddp_place_solver_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_modularity": (c_int, [c_int, POINTER(c_double), c_double, POINTER(c_int), POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_louvain": (c_int, [c_int, POINTER(c_double), c_double, POINTER(c_int), POINTER(c_int), POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_workload_estimate": (c_int, [POINTER(ddp_oplist), POINTER(ddp_network), POINTER(c_int),
        POINTER(ddp_workload_options), POINTER(ddp_workload), POINTER(ddp_error)]),
    "ddp_workload_free": (None, [POINTER(ddp_workload)]),
    "ddp_speed_fit": (c_int, [POINTER(c_double), POINTER(c_double), c_int, c_double, POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_workload_compress": (c_int, [POINTER(ddp_workload), POINTER(ddp_network), POINTER(ddp_workload_options),
        POINTER(ddp_adatopk_options), POINTER(ddp_workload), POINTER(ddp_error)]),
    "ddp_fence": (c_int, [POINTER(ddp_oplist), POINTER(ddp_network), POINTER(ddp_fence_options),
        POINTER(ddp_fence_plan), POINTER(ddp_error)]),
    "ddp_fence_plan_free": (None, [POINTER(ddp_fence_plan)]),
    "ddp_fence_solver_name": (c_char_p, [c_int]),
    "ddp_fence_solver_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_predict_step": (c_int, [POINTER(ddp_profile), c_int, POINTER(ddp_candidate), POINTER(ddp_prediction),
        POINTER(ddp_error)]),
    "ddp_result_of": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_result_reason": (c_char_p, [c_int]),
    "ddp_loss_built_in": (POINTER(ddp_loss_table), []),
    "ddp_loss_fit_new": (c_int, [POINTER(ddp_loss_table), POINTER(ddp_loss_fit), POINTER(ddp_error)]),
    "ddp_loss_fit_free": (None, [POINTER(ddp_loss_fit)]),
    "ddp_loss_of_ssgd": (c_double, [POINTER(ddp_loss_fit), c_double]),
    "ddp_loss_penalty": (c_int, [POINTER(ddp_loss_fit), POINTER(ddp_candidate), c_int, c_double, POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_loss_steps": (c_int, [POINTER(ddp_loss_fit), POINTER(ddp_candidate), c_int, c_double, POINTER(c_double),
        POINTER(ddp_error)]),
    "ddp_choice_candidates": (POINTER(ddp_candidate), [POINTER(c_int)]),
    "ddp_choose": (c_int, [POINTER(ddp_choice_options), POINTER(ddp_choice), POINTER(ddp_error)]),
    "ddp_choice_free": (None, [POINTER(ddp_choice)]),
    "ddp_candidate_options": (c_size_t, [POINTER(ddp_candidate), c_char_p, c_size_t]),
    "ddp_pipeline_name": (c_char_p, [c_int]),
    "ddp_pipeline_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_pipeline_tasks": (c_int, [POINTER(ddp_pipeline_shape), c_int, POINTER(ddp_task)]),
    "ddp_pipeline_held": (c_int, [POINTER(ddp_pipeline_shape), c_int]),
    "ddp_pipeline_time": (c_int, [POINTER(ddp_pipeline_costs), POINTER(ddp_pipeline_times), POINTER(ddp_error)]),
    "ddp_pipeline_times_free": (None, [POINTER(ddp_pipeline_times)]),
    "ddp_pack_bound": (c_size_t, [c_int, c_size_t, c_size_t]),
    "ddp_pack_sparse": (c_int, [c_int, c_size_t, c_size_t, POINTER(c_uint64), c_void_p, c_void_p, c_size_t,
        POINTER(c_size_t), POINTER(ddp_error)]),
    "ddp_pack_dense": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t), POINTER(ddp_error)]),
    "ddp_pack_quantised": (c_int, [c_int, c_void_p, c_size_t, c_void_p, c_size_t, POINTER(c_size_t),
        POINTER(ddp_error)]),
    "ddp_packed_read": (c_int, [c_void_p, c_size_t, POINTER(ddp_packed), POINTER(ddp_error)]),
    "ddp_unpack_store": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_unpack_add": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_packing_name": (c_char_p, [c_int]),
    "ddp_packing_named": (c_int, [c_char_p, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_feedback_add": (c_int, [c_void_p, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_feedback_keep": (c_int, [c_void_p, c_size_t, POINTER(c_uint64), c_size_t, POINTER(ddp_error)]),
    "ddp_feedback_subtract": (c_int, [c_void_p, c_size_t, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_sparse_keep": (c_int, [c_double]),
    "ddp_sparse_bytes": (c_size_t, [c_size_t, c_int]),
    "ddp_sparse_scratch": (c_size_t, [c_int]),
    "ddp_sparse_pack": (c_int, [c_void_p, c_size_t, c_int, c_void_p, c_size_t, c_void_p, c_size_t,
        POINTER(ddp_error)]),
    "ddp_sparse_add": (c_int, [c_void_p, c_size_t, c_int, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_topk": (c_int, [c_void_p, c_size_t, c_size_t, c_void_p, c_size_t, POINTER(c_uint64), c_void_p,
        POINTER(ddp_error)]),
    "ddp_topk_scratch": (c_size_t, [c_size_t, c_size_t]),
    "ddp_randomk": (c_int, [c_void_p, c_size_t, c_size_t, c_uint64, c_void_p, c_size_t, POINTER(c_uint64),
        c_void_p, POINTER(ddp_error)]),
    "ddp_randomk_scratch": (c_size_t, [c_size_t]),
    "ddp_adatopk": (c_int, [POINTER(c_double), POINTER(c_size_t), c_int, POINTER(ddp_adatopk_options),
        POINTER(ddp_link_compression), POINTER(ddp_error)]),
    "ddp_keep_count": (c_size_t, [c_size_t, c_double]),
    "ddp_now": (c_double, []),
    "ddp_rng_seed": (ddp_rng, [c_uint64, c_uint64]),
    "ddp_rng_u64": (c_uint64, [POINTER(ddp_rng)]),
    "ddp_rng_below": (c_uint64, [POINTER(ddp_rng), c_uint64]),
    "ddp_rng_uniform": (c_double, [POINTER(ddp_rng)]),
    "ddp_rng_normal": (c_double, [POINTER(ddp_rng)]),
    "ddp_hash_floats": (c_uint64, [c_uint64, c_void_p, c_size_t]),
    "ddp_shape_count": (c_long, [POINTER(ddp_shape)]),
    "ddp_shape_rows": (c_long, [POINTER(ddp_shape)]),
    "ddp_op_parallel": (None, [POINTER(ddp_op_call), c_long, c_long, CFUNCTYPE(None, c_void_p, c_long, c_long),
        c_void_p]),
    "ddp_graph_new": (c_void_p, [c_void_p]),
    "ddp_graph_free": (None, [c_void_p]),
    "ddp_layer_begin": (None, [c_void_p, c_char_p]),
    "ddp_layer_end": (None, [c_void_p]),
    "ddp_recompute_begin": (None, [c_void_p]),
    "ddp_recompute_end": (None, [c_void_p]),
    "ddp_input": (c_void_p, [c_void_p, c_char_p, c_int, c_long, c_long]),
    "ddp_input_shape": (c_void_p, [c_void_p, c_char_p, c_int, POINTER(ddp_shape)]),
    "ddp_linear": (c_void_p, [c_void_p, c_void_p, c_long]),
    "ddp_linear_no_bias": (c_void_p, [c_void_p, c_void_p, c_long]),
    "ddp_linear_tied": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ddp_embedding": (c_void_p, [c_void_p, c_void_p, c_long, c_long]),
    "ddp_position": (c_void_p, [c_void_p, c_void_p]),
    "ddp_layer_norm": (c_void_p, [c_void_p, c_void_p]),
    "ddp_attention": (c_void_p, [c_void_p, c_void_p, c_long]),
    "ddp_rms_norm": (c_void_p, [c_void_p, c_void_p, c_double]),
    "ddp_attention_grouped": (c_void_p, [c_void_p, c_void_p, c_long, c_long]),
    "ddp_rope": (c_void_p, [c_void_p, c_void_p, c_long, c_long, c_double]),
    "ddp_swiglu": (c_void_p, [c_void_p, c_void_p]),
    "ddp_gelu": (c_void_p, [c_void_p, c_void_p]),
    "ddp_relu": (c_void_p, [c_void_p, c_void_p]),
    "ddp_add": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ddp_dropout": (c_void_p, [c_void_p, c_void_p, c_float]),
    "ddp_cross_entropy": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ddp_linear_cross_entropy": (c_void_p, [c_void_p, c_void_p, c_void_p, c_long, c_void_p]),
    "ddp_conv2d": (c_void_p, [c_void_p, c_void_p, c_long, c_long, c_long, c_long, c_long, c_int]),
    "ddp_batch_norm2d": (c_void_p, [c_void_p, c_void_p]),
    "ddp_max_pool2d": (c_void_p, [c_void_p, c_void_p, c_long, c_long, c_long]),
    "ddp_avg_pool2d": (c_void_p, [c_void_p, c_void_p, c_long, c_long, c_long]),
    "ddp_global_avg_pool2d": (c_void_p, [c_void_p, c_void_p]),
    "ddp_flatten": (c_void_p, [c_void_p, c_void_p]),
    "ddp_register_op": (c_int, [c_void_p, POINTER(ddp_op)]),
    "ddp_apply": (c_void_p, [c_void_p, c_char_p, c_int, POINTER(c_void_p), c_int, POINTER(c_double), c_void_p]),
    "ddp_init_scale": (None, [c_void_p, c_void_p, c_int, c_float]),
    "ddp_init_normal": (None, [c_void_p, c_void_p, c_int, c_float]),
    "ddp_graph_cut": (c_int, [c_void_p, POINTER(c_int), c_int, c_int]),
    "ddp_graph_build": (c_int, [c_void_p]),
    "ddp_graph_error": (POINTER(ddp_error), [c_void_p]),
    "ddp_data": (c_void_p, [c_void_p, c_char_p]),
    "ddp_value": (c_float, [c_void_p, c_void_p]),
    "ddp_output": (c_void_p, [c_void_p, c_void_p]),
    "ddp_forward": (c_int, [c_void_p]),
    "ddp_backward": (c_int, [c_void_p, c_void_p]),
    "ddp_evaluate": (c_int, [c_void_p]),
    "ddp_zero_gradients": (None, [c_void_p]),
    "ddp_state_new": (c_void_p, [c_void_p]),
    "ddp_state_free": (None, [c_void_p]),
    "ddp_state_data": (c_void_p, [c_void_p, c_void_p]),
    "ddp_state_gradient": (c_void_p, [c_void_p, c_void_p]),
    "ddp_forward_range": (c_int, [c_void_p, c_int, c_int]),
    "ddp_backward_range": (c_int, [c_void_p, c_int, c_int]),
    "ddp_state_micro_batch": (None, [c_void_p, c_uint64]),
    "ddp_node_count": (c_int, [c_void_p]),
    "ddp_node_index": (c_int, [c_void_p]),
    "ddp_node_describe": (c_int, [c_void_p, c_int, POINTER(ddp_node_info)]),
    "ddp_layer_count": (c_int, [c_void_p]),
    "ddp_param_count": (c_size_t, [c_void_p]),
    "ddp_layer_params": (c_void_p, [c_void_p, c_int, POINTER(c_size_t)]),
    "ddp_layer_gradients": (c_void_p, [c_void_p, c_int, POINTER(c_size_t)]),
    "ddp_layer_buffers": (c_void_p, [c_void_p, c_int, POINTER(c_size_t)]),
    "ddp_node_param": (c_void_p, [c_void_p, c_void_p, c_int, POINTER(ddp_shape)]),
    "ddp_node_gradient": (c_void_p, [c_void_p, c_void_p, c_int]),
    "ddp_node_buffer": (c_void_p, [c_void_p, c_void_p, c_int, POINTER(ddp_shape)]),
    "ddp_activation_bytes": (c_size_t, [c_void_p]),
    "ddp_graph_read": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ddp_graph_write": (c_int, [c_void_p, c_void_p, c_void_p, c_size_t]),
    "ddp_edge_wire_parse": (c_int, [c_char_p, POINTER(ddp_edge_wire), POINTER(ddp_error)]),
    "ddp_edge_coding_name": (c_char_p, [c_int]),
    "ddp_pipe_open": (c_void_p, [c_void_p, c_void_p, c_void_p, POINTER(ddp_pipe_config)]),
    "ddp_pipe_close": (None, [c_void_p]),
    "ddp_pipe_input": (c_void_p, [c_void_p, c_int, c_char_p]),
    "ddp_pipe_samples": (c_int, [c_void_p, c_int, POINTER(c_long)]),
    "ddp_pipe_step": (c_int, [c_void_p]),
    "ddp_pipe_evaluate": (c_int, [c_void_p, c_int]),
    "ddp_pipe_loss": (c_float, [c_void_p]),
    "ddp_pipe_output": (c_void_p, [c_void_p, c_void_p]),
    "ddp_pipe_hash": (c_int, [c_void_p, POINTER(c_uint64)]),
    "ddp_pipe_bytes": (c_size_t, [c_void_p]),
    "ddp_pipe_get_stats": (c_int, [c_void_p, POINTER(ddp_pipe_stats)]),
    "ddp_pipe_lanes": (c_int, [c_void_p, POINTER(ddp_pipeline_slot), c_int]),
    "ddp_pipe_export": (c_int, [c_void_p, c_char_p]),
    "ddp_pipe_stage": (c_int, [c_void_p]),
    "ddp_pipe_number": (c_int, [c_void_p]),
    "ddp_pipe_cut": (c_int, [c_void_p, c_int, POINTER(c_int), POINTER(ddp_error)]),
    "ddp_pipe_layout_read": (c_int, [c_char_p, c_char_p, c_void_p, c_int, POINTER(ddp_pipe_layout),
        POINTER(ddp_error)]),
    "ddp_pipe_layout_free": (None, [POINTER(ddp_pipe_layout)]),
    "ddp_launch_pipelines": (c_int, [POINTER(ddp_config), c_int, c_int, CFUNCTYPE(c_int, c_void_p, c_void_p),
        c_void_p, POINTER(ddp_error)]),
    "ddp_pipe_resume": (c_int, [c_void_p]),
    "ddp_pipe_ends": (c_int, [c_void_p]),
    "ddp_pipe_micro_batches": (c_int, [c_void_p]),
    "ddp_simulate": (c_int, [POINTER(ddp_config), POINTER(ddp_simulation), CFUNCTYPE(c_int, c_void_p, c_void_p),
        c_void_p, POINTER(ddp_simulated), POINTER(ddp_error)]),
    "ddp_sleep_until": (None, [c_double]),
    "ddp_paper": (c_void_p, [c_size_t]),
    "ddp_paper_free": (None, [c_void_p, c_size_t]),
    "ddp_gpt2": (c_void_p, [c_void_p, POINTER(ddp_gpt2_config), POINTER(c_void_p)]),
    "ddp_llama2": (c_void_p, [c_void_p, POINTER(ddp_llama2_config), POINTER(c_void_p)]),
    "ddp_mlp": (c_void_p, [c_void_p, POINTER(ddp_mlp_config), POINTER(c_void_p)]),
    "ddp_resnet": (c_void_p, [c_void_p, POINTER(ddp_resnet_config), POINTER(c_void_p)]),
    "ddp_vgg": (c_void_p, [c_void_p, POINTER(ddp_vgg_config), POINTER(c_void_p)]),
    "ddp_bottleneck": (c_void_p, [c_void_p, c_void_p, c_long]),
    "ddp_bottleneck_down": (c_void_p, [c_void_p, c_void_p, c_long]),
    "ddp_bottleneck_up": (c_void_p, [c_void_p, c_void_p, c_long]),
    "ddp_tokens_open": (c_void_p, [c_char_p, POINTER(ddp_error)]),
    "ddp_tokens_from_bytes": (c_void_p, [c_char_p, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_tokens_close": (None, [c_void_p]),
    "ddp_tokens_kind": (c_char_p, [c_void_p]),
    "ddp_tokens_count": (c_long, [c_void_p]),
    "ddp_tokens_vocabulary": (c_long, [c_void_p]),
    "ddp_tokens_at": (c_int32, [c_void_p, c_long]),
    "ddp_tokens_byte": (c_int, [c_void_p, c_long]),
    "ddp_tokens_check": (c_int, [c_void_p, c_long, POINTER(ddp_error)]),
    "ddp_tokens_split": (c_int, [c_void_p, c_double, c_long, POINTER(ddp_token_range), POINTER(ddp_token_range),
        POINTER(ddp_error)]),
    "ddp_tokens_windows": (c_long, [POINTER(ddp_token_range)]),
    "ddp_tokens_window": (None, [POINTER(ddp_token_range), c_long, POINTER(c_int32), POINTER(c_int32)]),
    "ddp_tokens_batch": (None, [POINTER(ddp_token_range), c_uint64, c_long, c_int, c_int, c_long, POINTER(c_int32),
        POINTER(c_int32)]),
    "ddp_dealt": (c_long, [c_uint64, c_long, c_int, c_int, c_long, c_long, c_long]),
    "ddp_images_open": (POINTER(ddp_images), [c_char_p, c_int, POINTER(ddp_error)]),
    "ddp_images_idx": (POINTER(ddp_images), [c_char_p, c_char_p, POINTER(ddp_error)]),
    "ddp_images_cifar": (POINTER(ddp_images), [c_char_p, c_int, POINTER(ddp_error)]),
    "ddp_images_close": (None, [POINTER(ddp_images)]),
    "ddp_images_idx_bytes": (POINTER(ddp_images), [c_char_p, c_void_p, c_size_t, c_char_p, c_void_p, c_size_t,
        POINTER(ddp_error)]),
    "ddp_images_cifar_bytes": (POINTER(ddp_images), [c_char_p, c_void_p, c_size_t, c_int, POINTER(ddp_error)]),
    "ddp_images_split": (c_int, [POINTER(ddp_images), c_double, POINTER(ddp_image_range), POINTER(ddp_image_range),
        POINTER(ddp_error)]),
    "ddp_images_norm": (ddp_image_norm, [POINTER(ddp_image_range)]),
    "ddp_images_get": (None, [POINTER(ddp_image_range), POINTER(ddp_image_norm), c_long, c_void_p, POINTER(c_int32)]),
    "ddp_images_batch": (None, [POINTER(ddp_image_range), POINTER(ddp_image_norm), c_uint64, c_long, c_int, c_int,
        c_long, c_void_p, POINTER(c_int32)]),
    "ddp_safetensors_open": (c_void_p, [c_char_p, POINTER(ddp_error)]),
    "ddp_safetensors_from_bytes": (c_void_p, [c_char_p, c_void_p, c_size_t, POINTER(ddp_error)]),
    "ddp_safetensors_close": (None, [c_void_p]),
    "ddp_safetensors_count": (c_int, [c_void_p]),
    "ddp_safetensors_at": (POINTER(ddp_safetensor), [c_void_p, c_int]),
    "ddp_safetensors_find": (POINTER(ddp_safetensor), [c_void_p, c_char_p]),
    "ddp_safetensors_note": (c_char_p, [c_void_p, c_char_p]),
    "ddp_safetensors_elements": (c_uint64, [POINTER(ddp_safetensor)]),
    "ddp_safetensors_floats": (c_int, [c_void_p, POINTER(ddp_safetensor), c_uint64, c_size_t, c_void_p,
        POINTER(ddp_error)]),
    "ddp_safetensors_bytes": (c_int, [c_void_p, POINTER(ddp_safetensor), c_uint64, c_size_t, c_void_p,
        POINTER(ddp_error)]),
    "ddp_safetensors_write": (c_int, [c_char_p, c_int, POINTER(ddp_safetensor), POINTER(c_void_p),
        POINTER(c_char_p), POINTER(ddp_error)]),
    "ddp_safetensors_type_name": (c_char_p, [c_int]),
    "ddp_safetensors_type_bytes": (c_size_t, [c_int]),
    "ddp_weights_load": (c_int, [c_void_p, c_char_p, POINTER(ddp_error)]),
    "ddp_weights_save": (c_int, [c_void_p, c_char_p, POINTER(ddp_error)]),
    "ddp_weights_describe": (c_int, [c_void_p, c_int, c_char_p, c_size_t, POINTER(ddp_shape)]),
    "ddp_report_table": (c_int, [POINTER(ddp_report_data), c_void_p, POINTER(ddp_error)]),
    "ddp_report_html": (c_int, [POINTER(ddp_report_data), c_char_p, POINTER(ddp_error)]),
    "ddp_report_pipelines": (c_int, [POINTER(ddp_report_pipeline), c_int, c_void_p, POINTER(ddp_error)]),
    "ddp_report_trace": (c_int, [POINTER(ddp_report_data), c_char_p, POINTER(ddp_error)]),
    "ddp_jsonl_open": (c_void_p, [c_char_p, POINTER(ddp_error)]),
    "ddp_jsonl_stream": (c_void_p, [c_void_p, POINTER(ddp_error)]),
    "ddp_jsonl_close": (c_int, [c_void_p, POINTER(ddp_error)]),
    "ddp_jsonl_abandon": (None, [c_void_p]),
    "ddp_jsonl_event": (None, [c_void_p, c_char_p]),
    "ddp_jsonl_string": (None, [c_void_p, c_char_p, c_char_p]),
    "ddp_jsonl_integer": (None, [c_void_p, c_char_p, c_int64]),
    "ddp_jsonl_number": (None, [c_void_p, c_char_p, c_double]),
    "ddp_jsonl_array": (None, [c_void_p, c_char_p]),
    "ddp_jsonl_object": (None, [c_void_p, c_char_p]),
    "ddp_jsonl_up": (None, [c_void_p]),
    "ddp_jsonl_integers": (None, [c_void_p, c_char_p, POINTER(c_int), c_int]),
    "ddp_jsonl_end": (None, [c_void_p]),
}
